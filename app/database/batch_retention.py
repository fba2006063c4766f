"""Retention of batches in the registry: hide those that ended long ago, then delete their rows."""

from datetime import datetime

from sqlalchemy import delete, exists, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import batch_chunks, batch_results, batches, files

_FILES = (batches.c.input_file_id, batches.c.output_file_id, batches.c.error_file_id)
_HIDDEN = batches.c.deleted_at.is_not(None)


async def hide_ended(connection: AsyncConnection, *, before: datetime, at: datetime, limit: int) -> int:
    """Hide batches that ended before a moment and of which no file is live; return their number.

    What callers wrote into them is erased. Their rows stay as positions in lists.
    """
    live = [exists().where(files.c.id == column, files.c.deleted_at.is_(None)) for column in _FILES]
    ended = (
        select(batches.c.id)
        .where(batches.c.ended_at < before, batches.c.deleted_at.is_(None), *(~one for one in live))
        .order_by(batches.c.ended_at)
        .limit(limit)
    )
    erased = {name: null() for name in ("metadata", "errors", "quote", "reason")}
    statement = update(batches).where(batches.c.id.in_(ended)).values(deleted_at=at, **erased)
    return (await connection.execute(statement)).rowcount


async def delete_hidden(connection: AsyncConnection, *, before: datetime, limit: int) -> int:
    """Delete batches that were hidden before a moment; return their number."""
    parts = [exists().where(table.c.batch_id == batches.c.id) for table in (batch_chunks, batch_results)]
    hidden = (
        select(batches.c.id)
        .where(_HIDDEN, batches.c.deleted_at < before, *(~one for one in parts))
        .order_by(batches.c.deleted_at)
        .limit(limit)
    )
    return (await connection.execute(delete(batches).where(batches.c.id.in_(hidden)))).rowcount
