"""Claims of chunks: leases of the servers that run them."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.batch_chunks import chunk_of
from app.database.batch_tables import UNFINISHED_CHUNK
from app.database.tables import batch_chunks, batches
from app.domain.batches import BatchState, Chunk, ChunkState
from app.scheduling.batch_turns import FreeChunks


async def free_chunks(
    connection: AsyncConnection, batch_ids: Collection[str], *, node: str, now: datetime
) -> list[FreeChunks]:
    """Count the chunks that a node may claim, by batch and version."""
    if not batch_ids:
        return []
    first = func.min(batch_chunks.c.number)
    statement = (
        select(batch_chunks.c.batch_id, batch_chunks.c.version_id, first.label("first"), func.count().label("chunks"))
        .where(batch_chunks.c.batch_id.in_(sorted(batch_ids)), UNFINISHED_CHUNK, _free(node, now))
        .group_by(batch_chunks.c.batch_id, batch_chunks.c.version_id)
        .order_by(batch_chunks.c.batch_id, first)
    )
    rows = await connection.execute(statement)
    return [FreeChunks(row.batch_id, row.version_id, row.first, row.chunks) for row in rows.all()]


async def claim(
    connection: AsyncConnection, batch_id: str, version_id: int | None, *, node: str, now: datetime, until: datetime
) -> Chunk | None:
    """Lease the first free chunk of a running batch and a version; None if there is none, or others hold it."""
    statement = (
        select(batch_chunks)
        .join(batches, batch_chunks.c.batch_id == batches.c.id)
        .where(batches.c.state == BatchState.IN_PROGRESS, batch_chunks.c.batch_id == batch_id)
        .where(UNFINISHED_CHUNK, _free(node, now))
        .where(batch_chunks.c.version_id.is_(None) if version_id is None else batch_chunks.c.version_id == version_id)
        .order_by(batch_chunks.c.number)
        .limit(1)
        .with_for_update(skip_locked=True, of=batch_chunks)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    values = {"state": ChunkState.RUNNING, "node": node, "leased_until": until}
    await connection.execute(update(batch_chunks).where(*_is(row.batch_id, row.number)).values(**values))
    return chunk_of(row)


async def renew(connection: AsyncConnection, node: str, until: datetime) -> set[tuple[str, int]]:
    """Renew a node's leases; return batch and number of the chunks that it still holds."""
    held = and_(batch_chunks.c.node == node, batch_chunks.c.state == ChunkState.RUNNING)
    statement = update(batch_chunks).where(held).values(leased_until=until)
    rows = await connection.execute(statement.returning(batch_chunks.c.batch_id, batch_chunks.c.number))
    return {(row.batch_id, row.number) for row in rows}


async def release(connection: AsyncConnection, node: str, chunks: Collection[tuple[str, int]] | None = None) -> int:
    """Give back chunks of a node, all of them by default; return their number."""
    if chunks is not None and not chunks:
        return 0
    held = and_(batch_chunks.c.node == node, batch_chunks.c.state == ChunkState.RUNNING)
    if chunks is not None:
        held = and_(held, or_(*(and_(*_is(*chunk)) for chunk in sorted(chunks))))
    values: dict[str, Any] = {"state": ChunkState.WAITING, "node": None, "leased_until": None}
    return (await connection.execute(update(batch_chunks).where(held).values(**values))).rowcount


async def is_run(connection: AsyncConnection, batch_id: str, now: datetime) -> bool:
    """Return whether a server runs a chunk of a batch."""
    running = and_(batch_chunks.c.state == ChunkState.RUNNING, batch_chunks.c.leased_until > now)
    statement = select(batch_chunks.c.number).where(batch_chunks.c.batch_id == batch_id, running).limit(1)
    return (await connection.scalar(statement)) is not None


async def is_done(connection: AsyncConnection, batch_id: str, number: int) -> bool:
    """Return whether a chunk is done, or gone with its batch."""
    statement = select(batch_chunks.c.number).where(*_is(batch_id, number), UNFINISHED_CHUNK)
    return (await connection.scalar(statement)) is None


async def unfinished_chunks(connection: AsyncConnection, batch_id: str, *, limit: int) -> list[Chunk]:
    """List the first chunks of a batch that are not done, by number."""
    statement = (
        select(batch_chunks)
        .where(batch_chunks.c.batch_id == batch_id, UNFINISHED_CHUNK)
        .order_by(batch_chunks.c.number)
        .limit(limit)
    )
    return [chunk_of(row) for row in await connection.execute(statement)]


async def segments_of(connection: AsyncConnection, batch_id: str) -> list[tuple[int, str]]:
    """List number and blob of the chunks of a batch that are done, by number."""
    statement = (
        select(batch_chunks.c.number, batch_chunks.c.segment)
        .where(batch_chunks.c.batch_id == batch_id, batch_chunks.c.segment.is_not(None))
        .order_by(batch_chunks.c.number)
    )
    return [(row.number, row.segment) for row in await connection.execute(statement)]


async def ended_with_segments(
    connection: AsyncConnection, batch_id: str | None, *, limit: int
) -> list[tuple[str, int, str | None]]:
    """List batch, number and blob of chunks whose batch is final: their bytes are in its files.

    Args:
        batch_id: only of this batch; None: of all.
    """
    final = [state for state in BatchState if state.final]
    statement = (
        select(batch_chunks.c.batch_id, batch_chunks.c.number, batch_chunks.c.segment)
        .join(batches, batch_chunks.c.batch_id == batches.c.id)
        .where(batches.c.state.in_(final))
        .order_by(batch_chunks.c.batch_id, batch_chunks.c.number)
        .limit(limit)
    )
    if batch_id is not None:
        statement = statement.where(batch_chunks.c.batch_id == batch_id)
    return [(row.batch_id, row.number, row.segment) for row in await connection.execute(statement)]


async def forget_chunks(connection: AsyncConnection, chunks: Sequence[tuple[str, int]]) -> None:
    """Delete chunks whose blobs are gone."""
    for batch_id, number in chunks:
        await connection.execute(delete(batch_chunks).where(*_is(batch_id, number)))


def _free(node: str, now: datetime) -> ColumnElement[bool]:
    """Condition for chunks that a node may claim. Its own are not abandoned, whatever its clock says."""
    abandoned = and_(
        batch_chunks.c.state == ChunkState.RUNNING, batch_chunks.c.leased_until <= now, batch_chunks.c.node != node
    )
    return or_(batch_chunks.c.state == ChunkState.WAITING, abandoned)


def _is(batch_id: str, number: int) -> tuple[ColumnElement[bool], ...]:
    return batch_chunks.c.batch_id == batch_id, batch_chunks.c.number == number
