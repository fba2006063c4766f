"""Late settlement: count requests after the fact, on accounts that several servers share."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import limit_accounts
from app.domain.limits.limiter import Limiter, Reservation
from app.domain.usage import UsageRecord


async def count_late(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Count new usage records whose reservations were reclaimed, because their server died or was cut off.

    It runs in the transaction that writes the records. SQLite has a single server, which reclaims nothing.
    """
    if not records or connection.dialect.name != "postgresql":
        return
    await limit_accounts.lock_reclaimed(connection, alone=False)
    reservations = await limit_accounts.take_reclaimed(connection, [record.request_id for record in records])
    used = [
        (reservation, record.prompt_tokens + record.output_tokens, record.cost)
        for record in records
        if (reservation := reservations.get(record.request_id))
    ]
    if used:
        await charge(connection, used, minute=False)


async def charge(connection: AsyncConnection, used: Sequence[tuple[Reservation, int, int]], *, minute: bool) -> None:
    """Charge tokens and cost of requests that were admitted uncounted, or whose reservations were reclaimed.

    Subjects without an account are skipped. Their accounts start from the usage records, which include these requests.

    Args:
        minute: whether the current minute is charged too, see :meth:`Limiter.charge`.
    """
    at, subjects = (
        await limit_accounts.moment(connection),
        {subject for reservation, *_ in used for subject in reservation.subjects},
    )
    locked = await limit_accounts.lock(connection, subjects)
    accounts = {subject: account for subject, account in locked.items() if account}
    limiter = Limiter(accounts)
    for reservation, tokens, cost in used:
        counted = replace(
            reservation, subjects=tuple(subject for subject in reservation.subjects if subject in accounts)
        )
        limiter.charge(counted, tokens, cost, at.timestamp(), at, minute=minute)
    await limit_accounts.save(connection, limiter.accounts, subjects)
