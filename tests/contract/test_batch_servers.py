"""Batches on servers that restart, die, stop or share a registry: each line has one result and one charge."""

import asyncio
from datetime import timedelta

import pytest

from app.database import batch_chunks, batch_claims
from app.domain.batches import BatchState
from app.domain.errors import RegistryUnavailable
from app.engine.status import EngineState
from tests.support import batches as support
from tests.support.batch_runs import FINAL, check_sums, mixed, versions
from tests.support.batches import AnsweringEngine, created, until, until_state

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")

#: SQLite has one server.
SEVERAL_SERVERS = pytest.mark.parametrize("database_kind", ["postgresql"])


async def test_a_restarted_server_goes_on_at_once(node, servers, pricing, tmp_path):
    first = await servers.start(node)
    first.engine.before = lambda _: first.engine.may.clear() if len(first.engine.asked) > 40 else None
    batch = await created(first, pricing, mixed(120), await versions(node), at_once=25, folder=tmp_path)
    await until(node.database, batch.id, lambda _: not first.engine.may.is_set())
    await first.kill()
    first.engine = AnsweringEngine()
    await first.start()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 120, 0)
    await check_sums(first, batch)


@SEVERAL_SERVERS
async def test_late_answers_of_a_dead_server_cost_nothing(node, other_node, servers, pricing, tmp_path, clock):
    first = await servers.start(node)
    # Its answers are on its disk only: it dies before it ships them.
    first.ledger.ship = _never  # type: ignore[method-assign]
    first.engine.before = lambda _: first.engine.may.clear() if len(first.engine.asked) > 30 else None
    batch = await created(first, pricing, mixed(100), await versions(node), at_once=25, folder=tmp_path)
    await until(node.database, batch.id, lambda _: not first.engine.may.is_set())
    await first.kill()
    second = await servers.start(other_node)
    await second.runner.looked()
    assert set(second.engine.asked).isdisjoint(first.engine.asked), "leased chunks stay with their server"
    clock.advance(60)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 100, 0)
    assert set(second.engine.asked) & set(first.engine.asked)
    await check_sums(second, batch)
    first.engine = AnsweringEngine()
    await first.start()  # ships its journal
    await check_sums(second, batch)


async def _never() -> None:
    raise RegistryUnavailable("cut off")


@SEVERAL_SERVERS
async def test_two_servers_share_a_batch(node, other_node, servers, pricing, tmp_path):
    first, second = await servers.start(node), await servers.start(other_node)
    for server in (first, second):
        server.engine.may.clear()
    batch = await created(first, pricing, mixed(200), await versions(node), at_once=10, folder=tmp_path)
    await until(node.database, batch.id, lambda _: bool(first.engine.asked and second.engine.asked))
    for server in (first, second):
        server.engine.may.set()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.completed == 200
    assert set(first.engine.asked).isdisjoint(second.engine.asked)
    await check_sums(first, batch)


async def test_a_batch_with_a_width_outlives_its_leases(node, servers, pricing, tmp_path, clock):
    server = await servers.start(node, lost_s=0.6)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(6), await versions(node), at_once=2, width=2, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == 2)
    for _ in range(3):
        # The leases end, unless the server renews them.
        clock.advance(0.6)
        await until(node.database, batch.id, lambda batch: (batch.leased_until or clock()) > clock())
    await server.runner.looked()
    server.engine.may.set()
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 6
    assert server.engine.most == 2
    assert max(server.engine.asked.values()) == 1


async def test_a_jump_of_the_clock_starts_no_line_twice(node, servers, pricing, tmp_path, clock):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=5, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW)
    clock.advance(600)
    await server.runner.looked()
    server.engine.may.set()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.completed, ended.failed) == (60, 0)
    assert max(server.engine.asked.values()) == 1
    await check_sums(server, batch)


async def test_a_chunk_that_stays_leased_is_given_back_later(node, servers, pricing, tmp_path):
    server = await servers.start(node, lost_s=0.6)
    # As after a claim whose release did not reach the database.
    server.engine.state = EngineState.RESTARTING
    batch = await created(server, pricing, mixed(5), await versions(node), folder=tmp_path)
    now = node.clock()
    async with node.database.write() as connection:
        chunk = await batch_claims.claim(
            connection, batch.id, None, node=server.identity, now=now, until=now + timedelta(seconds=30)
        )
    assert chunk is not None
    server.engine.state = EngineState.READY
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 5


@SEVERAL_SERVERS
async def test_a_batch_with_a_width_runs_on_one_server(node, other_node, servers, pricing, tmp_path):
    first, second = await servers.start(node), await servers.start(other_node)
    batch = await created(first, pricing, mixed(60), await versions(node), at_once=5, width=2, folder=tmp_path)
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 60
    assert bool(first.engine.asked) is not bool(second.engine.asked)


async def test_stopping_gives_the_chunks_back(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=20, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW)
    stopping = asyncio.create_task(server.runner.stop(grace_s=30))
    await server.runner.looked()
    assert server.engine.running == support.WINDOW
    server.engine.may.set()
    await stopping
    now = await support.batch_now(node.database, batch.id)
    assert now.completed == support.WINDOW, "lines in flight had their grace"
    async with node.database.read() as connection:
        assert not [chunk for chunk in await batch_chunks.chunks_of(connection, batch.id) if chunk.node]
    await server.start()
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 60
    await check_sums(server, batch)


async def test_lines_that_do_not_end_in_their_grace_are_given_back(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(10), await versions(node), folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == 10)
    await server.runner.stop(grace_s=0.1)
    assert server.engine.running == 0
    server.engine.may.set()
    await server.start()
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 10
    await check_sums(server, batch)
