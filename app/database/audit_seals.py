"""Seals of the audit trail: one per row, in the order of rows."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import audit, audit_anchors, audit_seals
from app.domain.audit import GENESIS, Seal

#: Key of the PostgreSQL advisory lock for sealing, unique in this database.
_LOCK = 0x7365616C


async def last(connection: AsyncConnection, *, lock: bool = False) -> Seal:
    """Return the newest seal, or :data:`app.domain.audit.GENESIS` before the first row.

    Args:
        lock: True to block other sealers until the transaction ends (SQLite: the write lock has the same effect).
    """
    if lock and connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    statement = select(audit_seals).order_by(audit_seals.c.row_id.desc()).limit(1)
    row = (await connection.execute(statement)).one_or_none()
    return Seal(row.row_id, row.mac) if row else GENESIS


async def holds(connection: AsyncConnection, seal: Seal) -> bool:
    """Return whether exactly this seal is stored."""
    statement = select(audit_seals.c.mac).where(audit_seals.c.row_id == seal.row_id)
    return await connection.scalar(statement) == seal.mac


async def above(connection: AsyncConnection, row_id: int, *, limit: int) -> list[Seal]:
    """List the seals of rows with an id above ``row_id``, by id."""
    statement = select(audit_seals).where(audit_seals.c.row_id > row_id).order_by(audit_seals.c.row_id).limit(limit)
    return [Seal(row.row_id, row.mac) for row in await connection.execute(statement)]


async def newest(connection: AsyncConnection, *, limit: int) -> list[Seal]:
    """List the newest seals, by id."""
    statement = select(audit_seals).order_by(audit_seals.c.row_id.desc()).limit(limit)
    return [Seal(row.row_id, row.mac) for row in await connection.execute(statement)][::-1]


async def start(connection: AsyncConnection) -> tuple[Seal | None, Seal]:
    """Return the anchor of a trimmed trail, and the seal to which its first row chains.

    The anchor is None if the trail was never trimmed.
    """
    row = (await connection.execute(select(audit_anchors))).one_or_none()
    if row is None:
        return None, GENESIS
    mac = await connection.scalar(select(audit_seals.c.mac).where(audit_seals.c.row_id == row.row_id))
    return Seal(row.row_id, row.mac), Seal(row.row_id, mac or "")


async def trim(connection: AsyncConnection, anchor: Seal) -> None:
    """Delete all rows up to the anchor and their seals; the last of these seals stays."""
    await connection.execute(delete(audit).where(audit.c.id <= anchor.row_id))
    await connection.execute(delete(audit_seals).where(audit_seals.c.row_id < anchor.row_id))
    await connection.execute(delete(audit_anchors))
    await connection.execute(insert(audit_anchors).values(asdict(anchor)))


async def add(connection: AsyncConnection, seals: Sequence[Seal]) -> None:
    await connection.execute(insert(audit_seals), [asdict(seal) for seal in seals])
