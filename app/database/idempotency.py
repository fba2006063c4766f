"""Requests with an ``Idempotency-Key`` and their answers.

Until a request is answered, its row is a reservation: ``status`` is null, ``request`` holds the token of the
reservation, and ``created_at`` is the time of the last heartbeat of its holder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import idempotency

_NO_ANSWER = {"status": None, "body": None, "headers": None}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row.

    Attributes:
        request: fingerprint of the request; token for a reservation.
        status: HTTP status; None for a reservation.
        body: encrypted body.
        at: last heartbeat of a reservation, or time of the answer.
    """

    request: str
    status: int | None
    body: bytes = field(repr=False)
    headers: Sequence[tuple[str, str]]
    at: datetime


async def find(connection: AsyncConnection, actor: str, key: str) -> Entry | None:
    """Find a row and lock it until the transaction ends."""
    row = (await connection.execute(select(idempotency).where(_is(actor, key)).with_for_update())).one_or_none()
    if row is None:
        return None
    headers = tuple((name, value) for name, value in row.headers or ())
    return Entry(row.request, row.status, row.body or b"", headers, row.created_at)


async def reserve(connection: AsyncConnection, actor: str, key: str, token: str, *, at: datetime) -> None:
    """Create a reservation where there is no row.

    Raises:
        sqlalchemy.exc.IntegrityError: another request has just created one.
    """
    await connection.execute(insert(idempotency).values(actor=actor, key=key, request=token, created_at=at))


async def take_over(connection: AsyncConnection, actor: str, key: str, token: str, *, at: datetime) -> None:
    """Turn the row that ``find`` has locked into a new reservation."""
    values = {"request": token, "created_at": at, **_NO_ANSWER}
    await connection.execute(update(idempotency).where(_is(actor, key)).values(**values))


async def touch(connection: AsyncConnection, actor: str, key: str, token: str, *, at: datetime) -> None:
    """Renew a reservation: heartbeat of its holder."""
    await connection.execute(update(idempotency).where(_is_reserved(actor, key, token)).values(created_at=at))


async def keep(connection: AsyncConnection, actor: str, key: str, token: str, entry: Entry) -> bool:
    """Replace the reservation with the answer; False if another request took it over."""
    statement = update(idempotency).where(_is_reserved(actor, key, token))
    values = {
        "request": entry.request,
        "status": entry.status,
        "body": entry.body,
        "headers": [list(header) for header in entry.headers],
        "created_at": entry.at,
    }
    return (await connection.execute(statement.values(**values))).rowcount == 1


async def release(connection: AsyncConnection, actor: str, key: str, token: str) -> None:
    """Release a reservation."""
    await connection.execute(delete(idempotency).where(_is_reserved(actor, key, token)))


async def count(connection: AsyncConnection, actor: str) -> int:
    """Count the rows of an API key, reservations included."""
    statement = select(func.count()).select_from(idempotency).where(idempotency.c.actor == actor)
    return (await connection.execute(statement)).scalar_one()


async def answers(connection: AsyncConnection, actor: str) -> list[tuple[str, int]]:
    """List key and size in bytes of the stored answers of an API key, oldest first."""
    statement = (
        select(idempotency.c.key, func.length(idempotency.c.body))
        .where(idempotency.c.actor == actor, idempotency.c.status.is_not(None))
        .order_by(idempotency.c.created_at, idempotency.c.key)
    )
    return [(key, size) for key, size in await connection.execute(statement)]


async def drop(connection: AsyncConnection, actor: str, keys: Sequence[str]) -> None:
    """Delete these answers of an API key."""
    statement = delete(idempotency).where(
        idempotency.c.actor == actor, idempotency.c.key.in_(keys), idempotency.c.status.is_not(None)
    )
    await connection.execute(statement)


async def forget(connection: AsyncConnection, *, before: datetime) -> int:
    """Delete the rows older than a moment; return their number."""
    return (await connection.execute(delete(idempotency).where(idempotency.c.created_at < before))).rowcount


def _is(actor: str, key: str) -> ColumnElement[bool]:
    return (idempotency.c.actor == actor) & (idempotency.c.key == key)


def _is_reserved(actor: str, key: str, token: str) -> ColumnElement[bool]:
    return _is(actor, key) & (idempotency.c.request == token) & idempotency.c.status.is_(None)
