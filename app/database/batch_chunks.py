"""Chunks of batches in the registry."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import batch_chunks
from app.domain.batches import Chunk, ChunkState, LinePlace

#: Rows per statement, of up to 8 KiB each.
_ROWS_AT_ONCE = 32


async def insert_chunks(connection: AsyncConnection, chunks: Iterable[Chunk]) -> None:
    """Insert the chunks of a batch that was validated."""
    remaining = iter(chunks)
    while rows := [_row(chunk) for chunk in islice(remaining, _ROWS_AT_ONCE)]:
        await connection.execute(insert(batch_chunks), rows)


async def chunks_of(connection: AsyncConnection, batch_id: str) -> list[Chunk]:
    """List the chunks of a batch, by number."""
    statement = select(batch_chunks).where(batch_chunks.c.batch_id == batch_id).order_by(batch_chunks.c.number)
    return [chunk_of(row) for row in await connection.execute(statement)]


def chunk_of(row: Row[Any]) -> Chunk:
    """Parse a row with all columns of ``batch_chunks``."""
    return Chunk(
        batch_id=row.batch_id,
        number=row.number,
        version_id=row.version_id,
        model=row.model,
        lines=tuple(LinePlace(*place) for place in row.lines),
        state=ChunkState(row.state),
        node=row.node,
        leased_until=row.leased_until,
        segment=row.segment,
    )


def _row(chunk: Chunk) -> dict[str, Any]:
    return {
        "batch_id": chunk.batch_id,
        "number": chunk.number,
        "version_id": chunk.version_id,
        "model": chunk.model,
        "lines": [[line.number, line.offset, line.length] for line in chunk.lines],
        "state": chunk.state,
    }
