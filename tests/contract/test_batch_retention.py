"""Retention of batches on both databases: a batch goes some days after its end, and never before its files."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from app.database import batch_results, batches
from app.database.tables import audit, batch_chunks, deletions, files, usage
from app.database.tables import batches as batch_table
from app.domain.batches import Batch, BatchState, LineResult
from app.domain.errors import NotFound
from app.services.batches import sweeper
from app.services.batches.sweeper import REMEMBERED, BatchSweeper
from app.services.files.sweeper import FileSweeper
from tests.support.batch_admission import BatchNode, jsonl, line
from tests.support.registry import Node
from tests.support.usage_records import added, record

pytest_plugins = ("tests.support.registry_fixtures",)

DAY_S = 86400
KEPT_DAYS = 30


@pytest.fixture
async def here(node: Node, tmp_path: Path):
    here = BatchNode(node, tmp_path)
    yield here
    await here.close()


def batch_sweeper(node: Node) -> BatchSweeper:
    return BatchSweeper(node.database, kept_days=KEPT_DAYS, clock=node.clock)


async def ended(here: BatchNode, caller, *, files_live: bool = False) -> Batch:
    """A batch that failed in its validation; its input file is deleted by default."""
    batch = await here.admitted(caller, b"x")
    assert batch.state is BatchState.FAILED
    if not files_live:
        async with here.node.database.write() as connection:
            gone = update(files).where(files.c.id == batch.input_file_id).values(deleted_at=here.node.clock())
            await connection.execute(gone)
    return batch


async def ids(here: BatchNode) -> set[str]:
    async with here.node.database.read() as connection:
        return set(await connection.scalars(select(batch_table.c.id)))


async def listed(here: BatchNode, caller) -> list[str]:
    return [batch.id for batch in (await here.service.list(caller, limit=100)).data]


async def test_a_batch_goes_days_after_its_end_and_nothing_else_does(here: BatchNode, node: Node):
    caller = await here.caller("pricing")
    batch = await ended(here, caller)
    node.clock.advance(1)
    open_one = await here.admitted(caller, jsonl([line(1)]), completion_window="7d")
    await added(node.database, [record(1, caller.tenant_id or 0, at=node.clock())])
    node.clock.advance(KEPT_DAYS * DAY_S - 2)
    await batch_sweeper(node).sweep()
    assert await listed(here, caller) == [open_one.id, batch.id]
    node.clock.advance(2)
    await batch_sweeper(node).sweep()
    assert await listed(here, caller) == [open_one.id]
    assert [row.id for _, row in (await here.service.list_all()).data] == [open_one.id]
    with pytest.raises(NotFound, match="There is no batch"):
        await here.service.get(caller, batch.id)
    with pytest.raises(NotFound, match="There is no batch"):
        await here.service.cancel(caller, batch.id)
    node.clock.advance(REMEMBERED.total_seconds() + 1)
    await batch_sweeper(node).sweep()
    assert await ids(here) == {open_one.id}
    async with node.database.read() as connection:
        actions = set(await connection.scalars(select(audit.c.action).where(audit.c.subject == batch.id)))
        assert actions == {"batch.create", "batch.failed"}
        assert await connection.scalar(select(func.count()).select_from(usage)) == 1


async def test_what_callers_wrote_is_erased_at_once(here: BatchNode, node: Node):
    batch = await ended(here, await here.caller("pricing"))
    node.clock.advance(KEPT_DAYS * DAY_S + 1)
    await batch_sweeper(node).sweep()
    async with node.database.read() as connection:
        row = (await connection.execute(select(batch_table).where(batch_table.c.id == batch.id))).one()
    assert (row.errors, row.quote, row._mapping["metadata"]) == (None, None, None)


async def test_a_batch_stays_while_one_of_its_files_does(here: BatchNode, node: Node):
    caller = await here.caller("pricing")
    batches_of = {}
    for column in ("input_file_id", "output_file_id", "error_file_id"):
        batch = batches_of[column] = await ended(here, caller)
        live = await here.upload(caller, b"{}", lifetime_s=900 * DAY_S)
        async with node.database.write() as connection:
            values = {column: live.id}
            await connection.execute(update(batch_table).where(batch_table.c.id == batch.id).values(values))
    without = await ended(here, caller)
    node.clock.advance(90 * DAY_S)
    await batch_sweeper(node).sweep()
    assert set(await listed(here, caller)) == {batch.id for batch in batches_of.values()}
    assert without.id not in await listed(here, caller)


async def test_a_list_continues_after_a_batch_that_is_gone(here: BatchNode, node: Node):
    caller, other = await here.caller("pricing"), await here.caller("retail")
    old = await ended(here, caller, files_live=True)
    node.clock.advance(1)
    gone = await ended(here, caller)
    node.clock.advance(KEPT_DAYS * DAY_S + 1)
    await batch_sweeper(node).sweep()
    assert [batch.id for batch in (await here.service.list(caller, after=gone.id)).data] == [old.id]
    assert [batch.id for _, batch in (await here.service.list_all(after=gone.id)).data] == [old.id]
    with pytest.raises(NotFound):
        await here.service.list(other, after=gone.id)
    node.clock.advance(REMEMBERED.total_seconds() + 1)
    await batch_sweeper(node).sweep()
    with pytest.raises(NotFound):
        await here.service.list(caller, after=gone.id)


async def test_a_sweep_takes_limited_steps_to_the_end(here: BatchNode, node: Node, monkeypatch):
    monkeypatch.setattr(sweeper, "_STEP", 2)
    caller = await here.caller("pricing")
    for _ in range(5):
        await ended(here, caller)
    writes, write = 0, node.database.write

    def counted():
        nonlocal writes
        writes += 1
        return write()

    monkeypatch.setattr(node.database, "write", counted)
    node.clock.advance(KEPT_DAYS * DAY_S + 1)
    await batch_sweeper(node).sweep()
    assert await listed(here, caller) == []
    # Two, two and one are hidden, and none is deleted.
    assert writes == 4
    node.clock.advance(REMEMBERED.total_seconds() + 1)
    await batch_sweeper(node).sweep()
    assert await ids(here) == set()


async def test_rows_of_chunks_go_first_and_late_results_go_nowhere(here: BatchNode, node: Node):
    caller = await here.caller("pricing")
    batch = await here.admitted(caller, jsonl([line(1)]))
    async with node.database.write() as connection:
        hidden = {"state": "cancelled", "deleted_at": node.clock() - timedelta(days=30)}
        await connection.execute(update(batch_table).where(batch_table.c.id == batch.id).values(hidden))
    await batch_sweeper(node).sweep()
    assert await ids(here) == {batch.id}
    async with node.database.write() as connection:
        await connection.execute(batch_chunks.delete())
        late = LineResult(batch.id, 1, 0, False, "{}")
        assert await batch_results.add_failures(connection, [late]) == 0
    await batch_sweeper(node).sweep()
    assert await ids(here) == set()
    async with node.database.write() as connection:
        assert await batch_results.add_failures(connection, [late]) == 0


async def test_the_end_of_every_state_is_recorded(here: BatchNode, node: Node):
    caller = await here.caller("pricing")
    for state in (state for state in BatchState if state.final):
        batch = await here.create(caller, b"x")
        async with node.database.write() as connection:
            await batches.set_state(
                connection, batch.id, state, expected=[BatchState.VALIDATING], at=node.clock() + timedelta(seconds=9)
            )
        async with node.database.read() as connection:
            ended_at = await connection.scalar(select(batch_table.c.ended_at).where(batch_table.c.id == batch.id))
        assert ended_at == node.clock() + timedelta(seconds=9)


async def test_rows_of_files_go_after_their_batch(here: BatchNode, node: Node):
    """A batch keeps the rows of its files, so they go when it has gone."""
    caller = await here.caller("pricing")
    batch = await ended(here, caller, files_live=True)
    async with node.database.write() as connection:
        await connection.execute(update(files).values(expires_at=node.clock()))
    file_sweeper = FileSweeper(node.database, clock=node.clock)
    await file_sweeper.sweep()
    async with node.database.write() as connection:
        await connection.execute(update(deletions).values(finished_at=node.clock()))
    node.clock.advance(KEPT_DAYS * DAY_S + 1)
    await file_sweeper.sweep()
    await batch_sweeper(node).sweep()
    assert await ids(here) == {batch.id}
    node.clock.advance(REMEMBERED.total_seconds() + 1)
    await batch_sweeper(node).sweep()
    await file_sweeper.sweep()
    async with node.database.read() as connection:
        left = [await connection.scalar(select(func.count()).select_from(table)) for table in (files, deletions)]
    assert left == [0, 0]
