"""Deletions and the confirmations of each node."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, Text, and_, cast, delete, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import deletion_nodes, deletions, files
from app.domain.deletions import BlobFate, DeletedVersion, Deletion, NodeFate

_UNFINISHED = deletions.c.finished_at.is_(None)


async def insert_deletion(
    connection: AsyncConnection,
    versions: Sequence[DeletedVersion],
    *,
    tenant: str,
    subject: str,
    at: datetime,
    by: str,
    forced: bool = False,
    blobs: Mapping[str, BlobFate] | None = None,
    file_id: str | None = None,
) -> str:
    """Request the removal of versions, of a file or of blobs from all nodes and stores.

    Call it in the transaction that removes them from the registry.

    Args:
        blobs: blobs to remove besides those of the versions.
        file_id: file whose local copies every node removes first.

    Returns:
        The deletion's id, 32 hex digits.
    """
    identity = uuid.uuid4().hex
    await connection.execute(
        insert(deletions).values(
            id=identity,
            tenant=tenant,
            subject=subject,
            versions=[version.as_json() for version in versions],
            requested_at=at,
            requested_by=by,
            forced=forced,
            blobs=_blobs_json(blobs) if blobs else None,
            file_id=file_id,
        )
    )
    return identity


async def find_deletion(connection: AsyncConnection, identity: str, *, lock: bool = False) -> Deletion | None:
    """Find a deletion; ``lock`` locks its row until the transaction ends."""
    statement = select(deletions).where(deletions.c.id == identity)
    if lock:
        statement = statement.with_for_update()
    return next(iter(await _select(connection, statement)), None)


async def list_deletions(
    connection: AsyncConnection,
    *,
    tenant: str | None,
    since: datetime | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[Deletion]:
    """List deletions, newest first.

    Args:
        tenant: slug of the owner; None for all tenants.
        since: earliest time of the request.
        before: time and id of the last deletion on the page before.
    """
    statement = select(deletions).order_by(deletions.c.requested_at.desc(), deletions.c.id.desc()).limit(limit)
    if tenant is not None:
        statement = statement.where(deletions.c.tenant == tenant)
    if since is not None:
        statement = statement.where(deletions.c.requested_at >= since)
    if before is not None:
        moment, identity = before
        same = and_(deletions.c.requested_at == moment, deletions.c.id < identity)
        statement = statement.where(or_(deletions.c.requested_at < moment, same))
    return await _select(connection, statement)


async def unfinished(connection: AsyncConnection) -> list[Deletion]:
    """List unfinished deletions, oldest first."""
    return await _select(connection, select(deletions).where(_UNFINISHED).order_by(deletions.c.requested_at))


async def owed_by(connection: AsyncConnection, node: str) -> list[Deletion]:
    """List finished deletions that missed this node and that it has not caught up on."""
    owed = select(deletion_nodes.c.deletion_id).where(
        deletion_nodes.c.node == node, deletion_nodes.c.disk_gone_at.is_(None)
    )
    return await _select(connection, select(deletions).where(~_UNFINISHED, deletions.c.id.in_(owed)))


async def confirm(
    connection: AsyncConnection,
    identity: str,
    node: str,
    *,
    engine_gone_at: datetime | None = None,
    disk_gone_at: datetime | None = None,
) -> None:
    """Store the confirmations of a node; without times, record that the node was missed."""
    times = {"engine_gone_at": engine_gone_at, "disk_gone_at": disk_gone_at}
    confirmations = {name: time for name, time in times.items() if time is not None}
    conditions = (deletion_nodes.c.deletion_id == identity, deletion_nodes.c.node == node)
    recorded = await connection.scalar(select(deletion_nodes.c.node).where(*conditions))
    if recorded is None:
        await connection.execute(insert(deletion_nodes).values(deletion_id=identity, node=node, **confirmations))
    elif confirmations:
        await connection.execute(update(deletion_nodes).where(*conditions).values(**confirmations))


async def mark_shared(connection: AsyncConnection, deletion: Deletion, digests: Collection[str]) -> None:
    """Mark versions whose disk copies stay, because other versions have the same files; the row must be locked."""
    versions = [
        replace(v, shared=v.shared or any(key.digest in digests for key in v.keys)).as_json() for v in deletion.versions
    ]
    await connection.execute(update(deletions).where(deletions.c.id == deletion.id).values(versions=versions))


async def set_blobs(connection: AsyncConnection, identity: str, blobs: Mapping[str, BlobFate]) -> None:
    """Store the fates of the blobs; the row must be locked."""
    await connection.execute(update(deletions).where(deletions.c.id == identity).values(blobs=_blobs_json(blobs)))


async def finish(connection: AsyncConnection, identity: str, *, at: datetime) -> bool:
    """Finish a deletion; False if it was finished already."""
    statement = update(deletions).where(deletions.c.id == identity, _UNFINISHED).values(finished_at=at)
    return (await connection.execute(statement)).rowcount == 1


async def unfinished_blobs(connection: AsyncConnection) -> list[dict[str, BlobFate]]:
    """List the blob fates of every unfinished deletion that has reached the blobs."""
    statement = select(deletions.c.blobs).where(_UNFINISHED, deletions.c.blobs.is_not(None))
    return [_blobs(raw) for raw in await connection.scalars(statement)]


async def forget_of_files(connection: AsyncConnection, *, before: datetime, limit: int) -> int:
    """Delete deletions that finished before a moment and removed no versions; return their number.

    They are those of files, parts and unused blobs. A deletion stays while the row of its file does, which it proves.
    """
    of_file = exists().where(files.c.id == deletions.c.file_id)
    statement = (
        select(deletions.c.id)
        .where(deletions.c.finished_at < before, cast(deletions.c.versions, Text) == "[]", ~of_file)
        .order_by(deletions.c.finished_at)
        .limit(limit)
    )
    old = list(await connection.scalars(statement))
    await connection.execute(delete(deletion_nodes).where(deletion_nodes.c.deletion_id.in_(old)))
    return (await connection.execute(delete(deletions).where(deletions.c.id.in_(old)))).rowcount


async def _select(connection: AsyncConnection, statement: Select[Any]) -> list[Deletion]:
    rows = (await connection.execute(statement)).all()
    # Skip the query: every node polls unfinished deletions every second, and there are rarely any.
    fates = await _nodes(connection, [row.id for row in rows]) if rows else {}
    return [_deletion(row, fates[row.id]) for row in rows]


async def _nodes(connection: AsyncConnection, identities: Iterable[str]) -> Mapping[str, dict[str, NodeFate]]:
    statement = select(deletion_nodes).where(deletion_nodes.c.deletion_id.in_(list(identities)))
    fates: dict[str, dict[str, NodeFate]] = defaultdict(dict)
    for row in await connection.execute(statement.order_by(deletion_nodes.c.node)):
        fates[row.deletion_id][row.node] = NodeFate(row.node, row.engine_gone_at, row.disk_gone_at)
    return fates


def _deletion(row: Row[Any], nodes: Mapping[str, NodeFate]) -> Deletion:
    return Deletion(
        id=row.id,
        tenant=row.tenant,
        subject=row.subject,
        versions=tuple(DeletedVersion.from_json(raw) for raw in row.versions),
        requested_at=row.requested_at,
        requested_by=row.requested_by,
        forced=row.forced,
        nodes=nodes,
        blobs=_blobs(row.blobs or {}),
        file_id=row.file_id,
        finished_at=row.finished_at,
    )


def _blobs(raw: Mapping[str, Any]) -> dict[str, BlobFate]:
    return {digest: BlobFate.from_json(fate) for digest, fate in raw.items()}


def _blobs_json(blobs: Mapping[str, BlobFate]) -> dict[str, Any]:
    return {digest: fate.as_json() for digest, fate in blobs.items()}
