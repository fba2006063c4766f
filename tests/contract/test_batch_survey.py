"""The survey of open batches, which every server makes each second: its queries, its cost and its figures."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import text, update

from app.database import batches as batches_repo
from app.database import open_batches
from app.database.tables import batch_chunks
from app.database.tables import batches as batch_table
from app.domain.batches import BatchState
from app.services.batches.counts import Counts
from app.services.batches.supervision import Supervisor
from tests.support import batches as support
from tests.support.batches import Owner
from tests.support.registry import Node, recorded_statements

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")


async def opened(node: Node, pricing: Owner, state: BatchState, *, lines: int = 3) -> str:
    batch_id = await support.inserted(node, pricing, lines=lines)
    values = {"state": state, "total": 0 if state is BatchState.VALIDATING else lines}
    async with node.database.write() as connection:
        await connection.execute(update(batch_table).where(batch_table.c.id == batch_id).values(values))
    return batch_id


async def test_all_states_that_are_not_final_are_counted(node: Node, pricing: Owner):
    for state in BatchState:
        for _ in range(1 + state.final):
            await opened(node, pricing, state)
    counts = Counts(0.0)
    survey = await Supervisor(node.database, clock=node.clock).survey()
    counts.note(survey.rows, node.clock() + timedelta(seconds=5), 1.0)
    assert counts.open == {
        BatchState.VALIDATING: 1, BatchState.IN_PROGRESS: 1, BatchState.FINALIZING: 1, BatchState.CANCELLING: 1,
    }  # fmt: skip
    assert (counts.waiting, counts.oldest_s) == (9, 5.0)
    assert {entry.batch.state for entry in survey.worked_on} == set(counts.open) - {BatchState.VALIDATING}


async def test_a_batch_is_read_whole_when_it_is_new_or_changed(node: Node, pricing: Owner, registry_url: str):
    first = await opened(node, pricing, BatchState.IN_PROGRESS)
    supervisor = Supervisor(node.database, clock=node.clock)

    async def statements() -> int:
        with recorded_statements(registry_url) as ran:
            assert first in {entry.batch.id for entry in (await supervisor.survey()).worked_on}
        return len([statement for statement in ran if statement.startswith("SELECT")])

    assert await statements() == 3
    assert await statements() == 2
    second = await opened(node, pricing, BatchState.IN_PROGRESS)
    assert await statements() == 3
    async with node.database.write() as connection:
        await batches_repo.set_state(
            connection, second, BatchState.CANCELLING, expected=[BatchState.IN_PROGRESS], at=node.clock()
        )
    assert await statements() == 3
    assert await statements() == 2
    async with node.database.write() as connection:
        await batches_repo.set_state(
            connection, second, BatchState.CANCELLED, expected=[BatchState.CANCELLING], at=node.clock()
        )
    assert await statements() == 2
    assert [entry.batch.id for entry in (await supervisor.survey()).worked_on] == [first]


async def test_rights_are_those_of_this_second(node: Node, pricing: Owner):
    batch_id = await opened(node, pricing, BatchState.IN_PROGRESS)
    supervisor = Supervisor(node.database, clock=node.clock)
    (entry,) = (await supervisor.survey()).worked_on
    assert (entry.slug, entry.caller.weight, entry.caller.limits.tokens_per_day) == ("pricing", 1.0, None)
    await node.tenants.update("pricing", weight=3.0, limits={"tokens_per_day": 7}, actor="cli")
    (entry,) = (await supervisor.survey()).worked_on
    assert (entry.caller.weight, entry.caller.limits.tokens_per_day) == (3.0, 7)
    await node.tenants.update("pricing", disabled=True, actor="cli")
    (entry,) = (await supervisor.survey()).worked_on
    assert (entry.tenant_disabled, entry.batch.blocked and entry.batch.blocked.code) == (True, "tenant_disabled")
    assert entry.batch.id == batch_id


async def test_the_last_chunk_ends_the_batch(node: Node, pricing: Owner):
    batch_id = await opened(node, pricing, BatchState.IN_PROGRESS)
    supervisor = Supervisor(node.database, clock=node.clock)
    assert [entry.batch.state for entry in (await supervisor.survey()).worked_on] == [BatchState.IN_PROGRESS]
    async with node.database.write() as connection:
        done = update(batch_chunks).where(batch_chunks.c.batch_id == batch_id).values(state="done")
        await connection.execute(done)
    assert [entry.batch.state for entry in (await supervisor.survey()).worked_on] == [BatchState.FINALIZING]


@pytest.mark.parametrize("query", [open_batches.open_rows, open_batches.rights_of_creators])
async def test_partial_indexes_serve_the_queries(node: Node, registry_url: str, query):
    """The cost does not grow with batches that have ended, nor with chunks that are done."""
    explain = "EXPLAIN " if node.database.is_postgresql else "EXPLAIN QUERY PLAN "
    with recorded_statements(registry_url) as ran:
        async with node.database.read() as connection:
            await query(connection)
    (statement,) = [one for one in ran if one.startswith("SELECT")]
    async with node.database.write() as connection:
        if node.database.is_postgresql:
            # The tables are empty: the planner would prefer to read them whole.
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
        # Without parameters, so that the plan is that of every run.
        plan = "\n".join(" ".join(map(str, row)) for row in await connection.exec_driver_sql(explain + statement))
    assert re.search("ix_batches_(unfinished|state)", plan)
    assert ("ix_batch_chunks_unfinished" in plan) is (query is open_batches.open_rows)
