"""Ends of batches that no line brings about, on both databases: cancellation, expiry, revoked keys."""

from collections import Counter

from app.database import batches
from app.domain.batches import Batch, BatchState
from app.engine.port import EngineRequest
from app.services.common.batch_states import cancel
from tests.support import batches as support
from tests.support.batch_runs import FINAL, check_sums, mixed, versions
from tests.support.batches import content, created, until, until_state
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")


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
