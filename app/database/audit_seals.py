"""Seals of the audit trail: one for each row, in its order."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import audit, audit_anchors, audit_seals
from app.domain.audit import GENESIS, Seal

#: PostgreSQL's lock for whoever seals; a number that nothing else here locks.
_LOCK = 0x7365616C


async def last(connection: AsyncConnection, *, lock: bool = False) -> Seal:
    """The newest seal; before the first row :data:`app.domain.audit.GENESIS`.

    Args:
        lock: nobody else seals until the transaction ends (SQLite: the write lock does the same).
    """
    if lock and connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    statement = select(audit_seals).order_by(audit_seals.c.row_id.desc()).limit(1)
    row = (await connection.execute(statement)).one_or_none()
    return Seal(row.row_id, row.mac) if row else GENESIS


async def holds(connection: AsyncConnection, one: Seal) -> bool:
    """Whether there is this very seal."""
    statement = select(audit_seals.c.mac).where(audit_seals.c.row_id == one.row_id)
    return await connection.scalar(statement) == one.mac


async def above(connection: AsyncConnection, row_id: int, *, limit: int) -> list[Seal]:
    """Seals of rows with an id above that, by id."""
    statement = select(audit_seals).where(audit_seals.c.row_id > row_id).order_by(audit_seals.c.row_id).limit(limit)
    return [Seal(row.row_id, row.mac) for row in await connection.execute(statement)]


async def newest(connection: AsyncConnection, *, limit: int) -> list[Seal]:
    """The last seals, by id."""
    statement = select(audit_seals).order_by(audit_seals.c.row_id.desc()).limit(limit)
    return [Seal(row.row_id, row.mac) for row in await connection.execute(statement)][::-1]


async def start(connection: AsyncConnection) -> tuple[Seal | None, Seal]:
    """The anchor of a trail that was trimmed, and the seal that its first row leans on."""
    row = (await connection.execute(select(audit_anchors))).one_or_none()
    if row is None:
        return None, GENESIS
    mac = await connection.scalar(select(audit_seals.c.mac).where(audit_seals.c.row_id == row.row_id))
    return Seal(row.row_id, row.mac), Seal(row.row_id, mac or "")


async def trim(connection: AsyncConnection, anchor: Seal) -> None:
    """Remove all rows up to the anchor's, and their seals but the last."""
    await connection.execute(delete(audit).where(audit.c.id <= anchor.row_id))
    await connection.execute(delete(audit_seals).where(audit_seals.c.row_id < anchor.row_id))
    await connection.execute(delete(audit_anchors))
    await connection.execute(insert(audit_anchors).values(asdict(anchor)))


async def add(connection: AsyncConnection, seals: Sequence[Seal]) -> None:
    await connection.execute(insert(audit_seals), [asdict(one) for one in seals])
