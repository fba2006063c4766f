"""Servers on this registry and their heartbeats."""

from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import nodes
from app.domain.deletions import Node


async def register(connection: AsyncConnection, node: str, name: str, *, at: datetime) -> None:
    """Register a node that has started."""
    values = {"name": name, "started_at": at, "seen_at": at}
    if (await connection.execute(update(nodes).where(nodes.c.id == node).values(**values))).rowcount == 0:
        await connection.execute(insert(nodes).values(id=node, **values))


async def seen(connection: AsyncConnection, node: str, *, at: datetime, clock_offset_s: float | None) -> bool:
    """Record a heartbeat; False if the node is not registered, or no longer."""
    values = {"seen_at": at, "clock_offset_s": clock_offset_s}
    return (await connection.execute(update(nodes).where(nodes.c.id == node).values(**values))).rowcount == 1


async def database_time(connection: AsyncConnection) -> datetime | None:
    """Return the database's wall clock; None for SQLite, which uses the clock of this process."""
    if connection.dialect.name != "postgresql":
        return None
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def list_nodes(connection: AsyncConnection) -> list[Node]:
    """List the registered nodes, by id."""
    return [_node(row) for row in await connection.execute(select(nodes).order_by(nodes.c.id))]


async def forget_unseen(connection: AsyncConnection, *, before: datetime) -> int:
    """Delete the nodes last seen before a moment; return their number."""
    return (await connection.execute(delete(nodes).where(nodes.c.seen_at < before))).rowcount


def _node(row: Row[Any]) -> Node:
    return Node(
        id=row.id,
        name=row.name,
        started_at=row.started_at,
        seen_at=row.seen_at,
        clock_offset_s=row.clock_offset_s,
    )
