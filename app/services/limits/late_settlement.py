"""Late settlement: count requests after the fact, on accounts that several servers share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import limit_accounts
from app.domain.limits.limiter import Limiter, Reservation, Subject
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


async def settle_lines(connection: AsyncConnection, used: Mapping[str, tuple[int, int]]) -> None:
    """Settle reservations of lines of batches, in the transaction that writes their results and records.

    Each attempt of a line has a reservation. So a line that two servers ran is counted once, like its record.

    Args:
        used: tokens and cost by the id of the reservation; zeros for an attempt whose record was dropped.
    """
    if not used or connection.dialect.name != "postgresql":
        return
    await limit_accounts.lock_reclaimed(connection, alone=False)
    held = await limit_accounts.take_reservations(connection, used)
    reclaimed = await limit_accounts.take_reclaimed(connection, used)
    subjects = {subject for reservation in (*held.values(), *reclaimed.values()) for subject in reservation.subjects}
    if not subjects:
        return
    at = await limit_accounts.moment(connection)
    locked = await limit_accounts.lock(connection, subjects)
    accounts = {subject: account for subject, account in locked.items() if account}
    limiter = Limiter(accounts)
    for identity, reservation in held.items():
        tokens, cost = used[identity]
        limiter.settle(_counted(reservation, accounts), tokens, at.timestamp(), at, cost=cost)
    for identity, reservation in reclaimed.items():
        tokens, cost = used[identity]
        limiter.charge(_counted(reservation, accounts), tokens, cost, at.timestamp(), at, minute=False)
    await limit_accounts.save(connection, limiter.accounts, subjects)


def _counted(reservation: Reservation, accounts: Collection[Subject]) -> Reservation:
    """Leave out subjects without an account. Theirs will start from the usage records, which include this one."""
    return replace(reservation, subjects=tuple(subject for subject in reservation.subjects if subject in accounts))


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
        limiter.charge(_counted(reservation, accounts), tokens, cost, at.timestamp(), at, minute=minute)
    await limit_accounts.save(connection, limiter.accounts, subjects)
