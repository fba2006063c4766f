"""Batches on both databases: every line has one result, and is charged once, whatever fails in between."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from adapters.errors import StoreUnavailable
from app.database import batch_chunks, batch_claims, batches, files
from app.database.tables import batch_results, usage, usage_hours
from app.domain.adapters import Version
from app.domain.batches import Batch, BatchState, line_request_id
from app.domain.errors import Busy, EngineUnavailable, InvalidRequest, QueueFull, RegistryUnavailable
from app.engine.port import EngineRequest
from app.engine.status import EngineState
from app.services.common.batch_states import cancel
from tests.support import batches as support
from tests.support.batches import AnsweringEngine, Owner, Server, Servers, content, created, line, until, until_state
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

FINAL = (BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    await servers.stop()


@pytest.fixture
async def pricing(node: Node) -> Owner:
    return await support.owner(node, "pricing")


def mixed(count: int) -> list[dict[str, object]]:
    """Lines over the base and two adapters, shuffled."""
    names = random.Random(7).choices(["demo", "fast", "slow"], k=count)
    return [line(f"row {number}", f"p{number}", model=name) for number, name in enumerate(names)]


async def versions(node: Node, slug: str = "pricing") -> dict[str, Version | None]:
    return {"demo": None, "fast": await node.publish(slug, "fast", "a"), "slow": await node.publish(slug, "slow", "b")}


async def check_sums(server: Server, batch: Batch) -> Batch:
    """Check that output, usage records and the batch's sums say the same, to the token."""
    now = await support.batch_now(server.node.database, batch.id)
    output = await content(server, now, now.output_file_id)
    prompt = sum(entry["response"]["body"]["usage"]["prompt_tokens"] for entry in output)
    answer = sum(entry["response"]["body"]["usage"]["completion_tokens"] for entry in output)
    assert now.completed == len(output)
    assert (now.usage.prompt_tokens, now.usage.output_tokens) == (prompt, answer)
    async with server.node.database.read() as connection:
        rows = (await connection.execute(select(usage).order_by(usage.c.request_id))).all()
        left = (await connection.execute(select(batch_results.c.line))).all()
        hours = (await connection.execute(select(usage_hours))).all()
    lines = {row.request_id: (row.prompt_tokens, row.output_tokens) for row in rows}
    said = {
        entry["response"]["request_id"]: tuple(
            entry["response"]["body"]["usage"][name] for name in ("prompt_tokens", "completion_tokens")
        )
        for entry in output
    }
    assert lines == said
    assert len(rows) == len(output)
    assert (sum(hour.prompt_tokens for hour in hours), sum(hour.output_tokens for hour in hours)) == (prompt, answer)
    assert not left
    return now


async def test_answers_come_in_the_order_of_the_input(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    known, lines = await versions(node), mixed(300)
    batch = await created(server, pricing, lines, known, at_once=40, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.state is BatchState.COMPLETED
    assert (ended.completed, ended.failed, ended.error_file_id) == (300, 0, None)
    output = await content(server, ended, ended.output_file_id)
    assert [entry["custom_id"] for entry in output] == [entry["custom_id"] for entry in lines]
    for sent, entry in zip(lines, output, strict=True):
        name = sent["body"]["model"]
        version = known[name]
        assert entry["tenora"] == {"version": None if version is None else f"{name}@1"}
        assert entry["response"]["status_code"] == 200
        text = f"{version.key.version_id if version else 0}:{sent['body']['prompt']}"
        assert entry["response"]["body"]["choices"][0]["text"] == text
        assert entry["error"] is None
    await check_sums(server, batch)
    assert max(server.engine.asked.values()) == 1
    assert server.engine.most <= support.WINDOW


async def test_lines_run_in_the_tenants_lane(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(5), await versions(node), folder=tmp_path)
    await until_state(node.database, batch.id, *FINAL)
    for request in server.engine.order:
        assert request.tenant == "pricing/batch"
        assert request.weight == pytest.approx(0.01)
        assert request.cache_salt
        assert len(request.request_id) <= 32
    assert len({request.cache_salt for request in server.engine.order}) == 1


async def test_what_the_engine_refuses_is_in_the_error_file(node, servers, pricing, tmp_path):
    server = await servers.start(node)

    def refuse(request: EngineRequest) -> None:
        if request.body["prompt"] in ("p3", "p7"):
            raise InvalidRequest("bad \ud800 words", param="prompt")

    server.engine.before = refuse
    lines = [line(f"row {number}", f"p{number}") for number in range(10)]
    batch = await created(server, pricing, lines, {"demo": None}, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 8, 2)
    errors = await content(server, ended, ended.error_file_id)
    assert [entry["custom_id"] for entry in errors] == ["row 3", "row 7"]
    for entry in errors:
        assert entry["error"]["code"] == "invalid_value"
        assert entry["response"]["status_code"] == 400
        assert entry["response"]["body"]["error"]["param"] == "prompt"
    assert max(server.engine.asked.values()) == 1
    await check_sums(server, batch)


async def test_a_full_queue_and_a_dead_engine_mean_later(node, servers, pricing, tmp_path):
    server, chance = await servers.start(node), random.Random(3)
    errors = (
        QueueFull("full", retry_after=1),
        Busy("busy", retry_after=1),
        EngineUnavailable("restarting"),
        RegistryUnavailable("gone"),
        StoreUnavailable("gone"),
    )

    def sometimes(_: EngineRequest) -> None:
        if chance.random() < 0.4:
            raise chance.choice(errors)

    server.engine.before = sometimes
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=9, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 60, 0)
    assert max(server.engine.asked.values()) > 1
    await check_sums(server, batch)


async def test_an_error_that_no_rule_covers_ends_after_three_attempts(node, servers, pricing, tmp_path):
    server = await servers.start(node)

    def fail(request: EngineRequest) -> None:
        if request.body["prompt"] == "p1":
            raise ZeroDivisionError

    server.engine.before = fail
    batch = await created(
        server, pricing, [line(f"row {n}", f"p{n}") for n in range(3)], {"demo": None}, folder=tmp_path
    )
    ended = await until_state(node.database, batch.id, *FINAL)
    (error,) = await content(server, ended, ended.error_file_id)
    assert (error["custom_id"], error["error"]["code"]) == ("row 1", "internal_error")
    assert server.engine.asked[line_request_id(batch.id, 2)] == 3


async def test_no_line_starts_while_no_engine_runs(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.state = EngineState.RESTARTING
    batch = await created(server, pricing, mixed(20), await versions(node), folder=tmp_path)
    await asyncio.sleep(1.5)
    assert not server.engine.asked
    server.engine.state = EngineState.READY
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 20


async def test_a_spent_budget_blocks_until_it_is_raised(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    await node.tenants.update("pricing", limits={"tokens_per_day": 200, "requests_per_minute": 1}, actor="cli")
    lines = [line(f"row {number:02}", f"p{number:02}") for number in range(60)]
    batch = await created(server, pricing, lines, {"demo": None}, folder=tmp_path)
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None and batch.completed > 10)
    assert blocked.blocked is not None
    assert blocked.blocked.code == "tokens_per_day"
    assert "UTC" in blocked.blocked.message
    assert blocked.completed < 60
    assert blocked.failed == 0
    used = blocked.usage.prompt_tokens + blocked.usage.output_tokens
    assert used <= 200
    await node.tenants.update("pricing", limits={"tokens_per_day": None}, actor="cli")
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.blocked) == (BatchState.COMPLETED, 60, None)
    await check_sums(server, batch)


async def test_a_budget_too_small_for_a_line_blocks_too(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    await node.tenants.update("pricing", limits={"tokens_per_month": 0}, actor="cli")
    batch = await created(server, pricing, mixed(5), await versions(node), folder=tmp_path)
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None)
    assert blocked.blocked is not None
    assert blocked.blocked.code == "tokens_per_month"
    await node.tenants.update("pricing", limits={"tokens_per_month": 10_000}, actor="cli")
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 5


async def test_minute_limits_and_concurrency_do_not_apply(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    limits = {"requests_per_minute": 1, "tokens_per_minute": 1, "concurrent_requests": 1, "tokens_per_request": 1}
    await node.tenants.update("pricing", limits=limits, actor="cli")
    batch = await created(server, pricing, mixed(40), await versions(node), folder=tmp_path)
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 40


async def test_a_revoked_key_cancels(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(40), await versions(node), folder=tmp_path)
    await until(node.database, batch.id, lambda _: len(server.engine.asked) >= support.WINDOW)
    await node.keys.revoke("pricing", pricing.key_id, actor="cli")
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.CANCELLED, 0, 40)
    assert ended.reason is not None
    assert ended.reason.code == "key_revoked"
    errors = await content(server, ended, ended.error_file_id)
    assert {entry["error"]["code"] for entry in errors} == {"batch_cancelled"}
    assert [entry["custom_id"] for entry in errors] == [f"row {number}" for number in range(40)]
    await check_sums(server, batch)


async def test_an_expired_or_rotated_key_does_not_cancel(node, servers, pricing, tmp_path, clock):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(20), await versions(node), folder=tmp_path)
    await node.keys.rotate("pricing", pricing.key_id, grace_s=0, actor="cli")
    clock.advance(10)
    server.engine.may.set()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed) == (BatchState.COMPLETED, 20)


async def test_a_disabled_tenants_batch_waits(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(40), await versions(node), folder=tmp_path)
    await until(node.database, batch.id, lambda _: len(server.engine.asked) >= support.WINDOW)
    await node.tenants.update("pricing", disabled=True, actor="cli")
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None)
    assert blocked.blocked is not None
    assert blocked.blocked.code == "tenant_disabled"
    await until(node.database, batch.id, lambda _: server.engine.running == 0)
    server.engine.may.set()
    await node.tenants.update("pricing", disabled=False, actor="cli")
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.blocked) == (BatchState.COMPLETED, 40, None)
    await check_sums(server, batch)


async def cancelled(node: Node, batch: Batch) -> None:
    async with node.database.write() as connection:
        current = await batches.find_batch(connection, batch.id, lock=True)
        assert current is not None
        assert await cancel(connection, current, tenant="pricing", at=node.clock(), actor="cli")


async def test_cancelling_keeps_what_is_done(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    answered = Counter[str]()

    def hold(request: EngineRequest) -> None:
        answered[request.request_id] += 1
        if len(answered) == 30:
            server.engine.may.clear()

    server.engine.before = hold
    batch = await created(server, pricing, mixed(200), await versions(node), at_once=20, folder=tmp_path)
    await until(node.database, batch.id, lambda _: not server.engine.may.is_set())
    await cancelled(node, batch)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.state is BatchState.CANCELLED
    assert 30 <= ended.completed < 60
    assert ended.completed + ended.failed == 200
    await check_sums(server, batch)
    output = await content(server, ended, ended.output_file_id)
    errors = await content(server, ended, ended.error_file_id)
    assert len({entry["custom_id"] for entry in output} | {entry["custom_id"] for entry in errors}) == 200


async def test_a_clock_that_jumps_over_the_end_expires(node, servers, pricing, tmp_path, clock):
    server = await servers.start(node)
    answered = Counter[str]()

    def hold(request: EngineRequest) -> None:
        answered[request.request_id] += 1
        if len(answered) == 20:
            server.engine.may.clear()

    server.engine.before = hold
    batch = await created(server, pricing, mixed(100), await versions(node), at_once=10, window_s=600, folder=tmp_path)
    await until(node.database, batch.id, lambda _: not server.engine.may.is_set())
    clock.advance(3600)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.state is BatchState.EXPIRED
    assert ended.completed >= 20
    errors = await content(server, ended, ended.error_file_id)
    assert {entry["error"]["code"] for entry in errors} == {"batch_expired"}
    assert ended.completed + len(errors) == 100
    assert {BatchState.FINALIZING, BatchState.EXPIRED} <= ended.times.keys()
    await check_sums(server, batch)


async def test_a_version_that_disappears_fails_its_own_lines_only(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    known = await versions(node)
    server.engine.state = EngineState.RESTARTING
    batch = await created(server, pricing, mixed(90), known, folder=tmp_path)
    await node.adapters.quarantine(known["slow"].key.version_id, "broken")
    node.clock.advance(2)
    server.engine.state = EngineState.READY
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.state is BatchState.COMPLETED
    of_slow = [entry["custom_id"] for entry in mixed(90) if entry["body"]["model"] == "slow"]
    errors = await content(server, ended, ended.error_file_id)
    assert [entry["custom_id"] for entry in errors] == of_slow
    assert {entry["error"]["code"] for entry in errors} == {"adapter_unavailable"}
    assert ended.completed == 90 - len(of_slow)
    await check_sums(server, batch)


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


async def test_a_dead_servers_lines_run_elsewhere_and_its_late_answers_cost_nothing(
    node, other_node, database_kind, servers, pricing, tmp_path, clock
):
    if database_kind == "sqlite":
        pytest.skip("SQLite has one server")
    first = await servers.start(node)
    # Its answers are on its disk only: it dies before it ships them.
    first.ledger.ship = _never  # type: ignore[method-assign]
    first.engine.before = lambda _: first.engine.may.clear() if len(first.engine.asked) > 30 else None
    batch = await created(first, pricing, mixed(100), await versions(node), at_once=25, folder=tmp_path)
    await until(node.database, batch.id, lambda _: not first.engine.may.is_set())
    await first.kill()
    second = await servers.start(other_node)
    await asyncio.sleep(1.5)
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


async def test_two_servers_share_a_batch(node, other_node, database_kind, servers, pricing, tmp_path):
    if database_kind == "sqlite":
        pytest.skip("SQLite has one server")
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


async def test_a_store_that_is_down_blocks_and_loses_nothing(node, servers, pricing, tmp_path, monkeypatch):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(50), await versions(node), at_once=10, folder=tmp_path)
    put, down = server.store.put, True

    def refuse(*arguments: object) -> bool:
        if down:
            raise StoreUnavailable("down")
        return put(*arguments)

    monkeypatch.setattr(server.store, "put", refuse)
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None)
    assert blocked.blocked is not None
    assert blocked.blocked.code == "store_unavailable"
    await until(node.database, batch.id, lambda batch: batch.completed == 50)
    down = False
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.blocked) == (BatchState.COMPLETED, 50, None)
    await check_sums(server, batch)


async def test_a_database_that_is_away_loses_nothing(node, servers, pricing, tmp_path, monkeypatch):
    server = await servers.start(node)
    answered = Counter[str]()
    away = asyncio.Event()
    batch = await created(server, pricing, mixed(80), await versions(node), at_once=20, folder=tmp_path)
    write, read = node.database.write, node.database.read

    def refused(real):
        def call():
            if away.is_set():
                raise RegistryUnavailable("away")
            return real()

        return call

    monkeypatch.setattr(node.database, "write", refused(write))
    monkeypatch.setattr(node.database, "read", refused(read))

    def cut(request: EngineRequest) -> None:
        answered[request.request_id] += 1
        if len(answered) == 30:
            away.set()

    server.engine.before = cut
    await asyncio.wait_for(away.wait(), 30)
    await asyncio.sleep(2)
    away.clear()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 80, 0)
    await check_sums(server, batch)


@pytest.mark.parametrize("width", [1, 3])
async def test_width_caps_the_lines_in_flight(node, servers, pricing, tmp_path, width):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(20), await versions(node), at_once=4, width=width, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.completed == 20
    assert server.engine.most == width


async def test_a_batch_with_a_width_outlives_its_leases(node, servers, pricing, tmp_path):
    server = await servers.start(node, lost_s=0.6)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(6), await versions(node), at_once=2, width=2, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == 2)
    await asyncio.sleep(1.5)
    server.engine.may.set()
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 6
    assert server.engine.most == 2
    assert max(server.engine.asked.values()) == 1


async def test_a_clock_that_jumps_within_the_window_starts_no_line_twice(node, servers, pricing, tmp_path, clock):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=5, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW)
    clock.advance(600)
    await asyncio.sleep(1.5)
    server.engine.may.set()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.completed, ended.failed) == (60, 0)
    assert max(server.engine.asked.values()) == 1
    await check_sums(server, batch)


async def test_a_chunk_that_could_not_be_given_back_is_given_back_later(node, servers, pricing, tmp_path):
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


async def test_a_batch_with_a_width_runs_on_one_server(node, other_node, database_kind, servers, pricing, tmp_path):
    if database_kind == "sqlite":
        pytest.skip("SQLite has one server")
    first, second = await servers.start(node), await servers.start(other_node)
    batch = await created(first, pricing, mixed(60), await versions(node), at_once=5, width=2, folder=tmp_path)
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 60
    assert bool(first.engine.asked) is not bool(second.engine.asked)


async def test_a_second_tenant_does_not_wait_for_the_first(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    other = await support.owner(node, "retail")
    large = await created(server, pricing, mixed(400), await versions(node), at_once=100, folder=tmp_path)
    await until(node.database, large.id, lambda _: server.engine.running == support.WINDOW)
    small = await created(server, other, [line("one", "x"), line("two", "y")], {"demo": None}, folder=tmp_path)
    # Its chunk is here before the first tenant's lines go on.
    await asyncio.sleep(2.5)
    server.engine.may.set()
    await until_state(node.database, small.id, *FINAL)
    order = [request.tenant for request in server.engine.order]
    assert max(index for index, tenant in enumerate(order) if tenant == "retail/batch") < 3 * support.WINDOW
    assert (await until_state(node.database, large.id, *FINAL)).completed == 400


async def test_stopping_gives_the_chunks_back(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=20, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW)
    server.runner.leave()
    asyncio.get_running_loop().call_later(0.3, server.engine.may.set)
    await server.runner.stop(grace_s=30)
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


async def test_the_batch_expires_after_its_lifetime(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(3), await versions(node), folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    async with node.database.read() as connection:
        file = await files.find_file(connection, pricing.tenant_id, ended.output_file_id or "")
    assert file is not None
    assert file.expires_at == node.clock() + timedelta(days=1)
    assert (file.created_by, file.purpose.value) == (pricing.key_id, "batch_output")


async def test_nothing_is_left_of_an_ended_batch_but_its_files(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(30), await versions(node), at_once=7, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    async with asyncio.timeout(30):
        while True:
            async with node.database.read() as connection:
                if not await batch_chunks.chunks_of(connection, batch.id):
                    break
            await asyncio.sleep(0.02)
    async with node.database.read() as connection:
        kept = [
            await files.find_file(connection, pricing.tenant_id, identity or "")
            for identity in (ended.input_file_id, ended.output_file_id)
        ]
    assert {blob.digest for blob in server.store.list_blobs()} == {file.digest for file in kept if file}
