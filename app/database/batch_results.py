"""Results of lines, and the sums of their batches.

Every transaction here locks its batches first, in the order of their ids. So a result and the end of its chunk never
miss each other, and two servers cannot deadlock.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Row, and_, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import batch_chunks, batch_results, batches
from app.domain.batches import BatchUsage, ChunkState, LineResult
from app.domain.money import UNIT
from app.domain.usage import UsageEntry, UsageRecord

#: Rows per INSERT statement.
_ROWS_AT_ONCE = 32
_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


async def add_answers(connection: AsyncConnection, entries: Sequence[UsageEntry]) -> list[UsageEntry]:
    """Write the results of answered lines and add their usage to the batches; return the entries that were new.

    The result of a line that has one already, or whose chunk is done, is dropped.
    """
    by_line = {(entry.result.batch_id, entry.result.line): entry for entry in entries if entry.result is not None}
    new = await _insert(connection, [entry.result for entry in by_line.values() if entry.result is not None])
    accepted = [by_line[line] for line in new]
    groups: dict[str, list[UsageRecord]] = defaultdict(list)
    for (batch_id, _), entry in zip(new, accepted, strict=True):
        groups[batch_id].append(entry.record)
    for batch_id, records in sorted(groups.items()):
        await _add_sums(connection, batch_id, completed=len(records), usage=_usage(records))
    return accepted


async def add_failures(connection: AsyncConnection, results: Sequence[LineResult]) -> int:
    """Write results of lines that used nothing, and count them; return the number of new ones."""
    new = await _insert(connection, results)
    for batch_id, count in sorted(Counter(batch_id for batch_id, _ in new).items()):
        await _add_sums(connection, batch_id, failed=count)
    return len(new)


async def lines_with_results(connection: AsyncConnection, batch_id: str, chunk: int) -> set[int]:
    """Return the numbers of the lines of a chunk that have a result."""
    return set(await connection.scalars(select(batch_results.c.line).where(*_of_chunk(batch_id, chunk))))


async def results_of(connection: AsyncConnection, batch_id: str, chunk: int) -> list[LineResult]:
    """Return the results of a chunk that is not done, by line."""
    statement = select(batch_results).where(*_of_chunk(batch_id, chunk)).order_by(batch_results.c.line)
    return [_result(row) for row in await connection.execute(statement)]


async def finish_chunk(connection: AsyncConnection, batch_id: str, chunk: int, segment: str) -> bool:
    """Replace the results of a chunk by the blob that holds them; False if the chunk is done already."""
    await _lock(connection, [batch_id])
    statement = (
        update(batch_chunks)
        .where(batch_chunks.c.batch_id == batch_id, batch_chunks.c.number == chunk)
        .where(batch_chunks.c.state != ChunkState.DONE)
        .values(state=ChunkState.DONE, segment=segment, node=None, leased_until=None)
    )
    if (await connection.execute(statement)).rowcount != 1:
        return False
    await connection.execute(delete(batch_results).where(*_of_chunk(batch_id, chunk)))
    return True


async def _insert(connection: AsyncConnection, results: Iterable[LineResult]) -> list[tuple[str, int]]:
    """Insert results; return batch and line of the new ones."""
    results = list(results)
    if not results:
        return []
    await _lock(connection, {result.batch_id for result in results})
    open_chunks = await _open_chunks(connection, results)
    rows = [
        {
            "batch_id": result.batch_id,
            "line": result.line,
            "chunk": result.chunk,
            "succeeded": result.succeeded,
            "content": result.content,
        }
        for result in sorted(results, key=lambda result: (result.batch_id, result.line))
        if (result.batch_id, result.chunk) in open_chunks
    ]
    if not rows:
        return []
    inserted = await connection.execute(_inserting(connection.dialect.name), rows)
    return [(row.batch_id, row.line) for row in inserted]


async def _lock(connection: AsyncConnection, batch_ids: Collection[str]) -> None:
    statement = select(batches.c.id).where(batches.c.id.in_(sorted(batch_ids))).order_by(batches.c.id)
    await connection.execute(statement.with_for_update())


async def _open_chunks(connection: AsyncConnection, results: Sequence[LineResult]) -> set[tuple[str, int]]:
    """Return batch and number of those chunks of the results that exist and are not done."""
    chunks: dict[str, set[int]] = defaultdict(set)
    for result in results:
        chunks[result.batch_id].add(result.chunk)
    named = or_(
        *(
            and_(batch_chunks.c.batch_id == batch_id, batch_chunks.c.number.in_(sorted(numbers)))
            for batch_id, numbers in sorted(chunks.items())
        )
    )
    statement = select(batch_chunks.c.batch_id, batch_chunks.c.number).where(
        named, batch_chunks.c.state != ChunkState.DONE
    )
    return {(row.batch_id, row.number) for row in await connection.execute(statement)}


async def _add_sums(
    connection: AsyncConnection,
    batch_id: str,
    *,
    completed: int = 0,
    failed: int = 0,
    usage: BatchUsage = BatchUsage(),  # noqa: B008 - frozen
) -> None:
    units, picos = divmod(usage.cost, UNIT)
    sums = batches.c.cost_picos + picos
    await connection.execute(
        update(batches)
        .where(batches.c.id == batch_id)
        .values(
            completed=batches.c.completed + completed,
            failed=batches.c.failed + failed,
            prompt_tokens=batches.c.prompt_tokens + usage.prompt_tokens,
            cached_tokens=batches.c.cached_tokens + usage.cached_tokens,
            output_tokens=batches.c.output_tokens + usage.output_tokens,
            cost_units=batches.c.cost_units + units + sums // UNIT,
            cost_picos=sums % UNIT,
        )
    )


# Cached, because building a statement is slow. See docs/decisions/0036-statements-for-usage-records.md.
@cache
def _inserting(dialect: str) -> Any:
    columns = (batch_results.c.batch_id, batch_results.c.line)
    statement = _INSERTS[dialect](batch_results).on_conflict_do_nothing().returning(*columns)
    return statement.execution_options(insertmanyvalues_page_size=_ROWS_AT_ONCE)


def _usage(records: Sequence[UsageRecord]) -> BatchUsage:
    return BatchUsage(
        sum(record.prompt_tokens for record in records),
        sum(record.cached_tokens for record in records),
        sum(record.output_tokens for record in records),
        sum(record.cost for record in records),
    )


def _of_chunk(batch_id: str, chunk: int) -> tuple[Any, ...]:
    return batch_results.c.batch_id == batch_id, batch_results.c.chunk == chunk


def _result(row: Row[Any]) -> LineResult:
    return LineResult(row.batch_id, row.line, row.chunk, row.succeeded, row.content)
