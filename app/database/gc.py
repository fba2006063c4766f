"""Garbage collection of expired rows."""

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import idempotency, nodes, uploads


async def count_idempotency(connection: AsyncConnection, *, before: datetime) -> int:
    """Count stored answers that are past their TTL."""
    statement = select(func.count()).select_from(idempotency).where(idempotency.c.created_at < before)
    return int((await connection.execute(statement)).scalar_one())


async def forget_idempotency(connection: AsyncConnection, *, before: datetime) -> int:
    return (await connection.execute(delete(idempotency).where(idempotency.c.created_at < before))).rowcount


async def count_unseen_nodes(connection: AsyncConnection, *, before: datetime) -> int:
    statement = select(func.count()).select_from(nodes).where(nodes.c.seen_at < before)
    return int((await connection.execute(statement)).scalar_one())


async def count_expired_uploads(connection: AsyncConnection, *, at: datetime) -> int:
    """Count open uploads that have expired."""
    conditions = (uploads.c.state == "open", uploads.c.expires_at < at)
    return int((await connection.execute(select(func.count()).select_from(uploads).where(*conditions))).scalar_one())
