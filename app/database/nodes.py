"""Nodes on this registry, their heartbeats and the state of their engines."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row, case, delete, func, insert, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import nodes
from app.domain.deletions import Node
from app.domain.node_snapshots import NodeReport, NodeRole, NodeSnapshot, NodeState
from app.scheduling.pin_assignment import SeenReplica

#: Snapshots are large, and most queries of nodes need none.
_NODE = (nodes.c.id, nodes.c.name, nodes.c.started_at, nodes.c.seen_at, nodes.c.clock_offset_s)
_SNAPSHOT = TypeAdapter(NodeSnapshot)


async def register(
    connection: AsyncConnection, node: str, name: str, *, at: datetime, member_s: float | None = None
) -> None:
    """Register a node that has started.

    Args:
        member_s: seconds since its last heartbeat after which it loses its slots until its next report. None: it
            keeps them.
    """
    values: dict[str, Any] = {"name": name, "started_at": at, "seen_at": at}
    changed = dict(values)
    if member_s is not None:
        absent = nodes.c.seen_at < at - timedelta(seconds=member_s)
        changed["slots"] = case((absent, null()), else_=nodes.c.slots)
    if (await connection.execute(update(nodes).where(nodes.c.id == node).values(**changed))).rowcount == 0:
        await connection.execute(insert(nodes).values(id=node, **values))


async def seen(
    connection: AsyncConnection,
    node: str,
    *,
    at: datetime,
    clock_offset_s: float | None,
    report: NodeReport | None = None,
) -> bool:
    """Record a heartbeat; False if the node is not registered, or no longer."""
    values: dict[str, Any] = {"seen_at": at, "clock_offset_s": clock_offset_s}
    if report is not None:
        values |= _report(report, at)
    return (await connection.execute(update(nodes).where(nodes.c.id == node).values(**values))).rowcount == 1


async def database_time(connection: AsyncConnection) -> datetime | None:
    """Return the database's wall clock; None for SQLite, which uses the clock of this process."""
    if connection.dialect.name != "postgresql":
        return None
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def list_nodes(connection: AsyncConnection) -> list[Node]:
    """List the registered nodes, by id."""
    return [_node(row) for row in await connection.execute(select(*_NODE).order_by(nodes.c.id))]


async def list_states(connection: AsyncConnection) -> dict[str, NodeState]:
    """Map the id of each node to its last report."""
    columns = (nodes.c.id, nodes.c.role, nodes.c.snapshot, nodes.c.snapshot_at)
    return {row.id: _state(row) for row in await connection.execute(select(*columns))}


async def list_replicas(connection: AsyncConnection, base_digest: str, *, now: datetime) -> list[SeenReplica]:
    """List the engine replicas of a base that have slots, by id."""
    statement = (
        select(nodes.c.id, nodes.c.slots, nodes.c.seen_at)
        .where(nodes.c.role == NodeRole.REPLICA, nodes.c.base_digest == base_digest, nodes.c.slots > 0)
        .order_by(nodes.c.id)
    )
    return [
        SeenReplica(row.id, row.slots, row.seen_at, (now - row.seen_at).total_seconds())
        for row in await connection.execute(statement)
    ]


async def forget_unseen(connection: AsyncConnection, *, before: datetime) -> int:
    """Delete the nodes last seen before a moment; return their number."""
    return (await connection.execute(delete(nodes).where(nodes.c.seen_at < before))).rowcount


def _node(row: Row[*tuple[Any, ...]]) -> Node:
    return Node(
        id=row.id,
        name=row.name,
        started_at=row.started_at,
        seen_at=row.seen_at,
        clock_offset_s=row.clock_offset_s,
    )


def _report(report: NodeReport, at: datetime) -> Mapping[str, Any]:
    snapshot = report.snapshot
    return {
        "role": report.role,
        "base_digest": report.base_digest,
        "slots": report.slots,
        "snapshot": None if snapshot is None else asdict(snapshot),
        "snapshot_at": None if snapshot is None else at,
    }


def _state(row: Row[*tuple[Any, ...]]) -> NodeState:
    role = NodeRole(row.role) if row.role in set(NodeRole) else None
    snapshot = None
    if row.snapshot is not None:
        try:
            snapshot = _SNAPSHOT.validate_python(row.snapshot)
        except ValidationError:
            # A node of another release wrote it.
            snapshot = None
    return NodeState(row.id, role, snapshot, row.snapshot_at if snapshot else None)
