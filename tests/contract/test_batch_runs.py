"""Batches on both databases: every line has one result, in the order of the input, and is charged once."""

import asyncio
from datetime import timedelta

import pytest

from app.database import batch_chunks, files
from app.domain.batches import BatchState, line_request_id
from app.domain.errors import InvalidRequest, LimitExceeded, NotFound
from app.engine.port import Endpoint, EngineRequest
from app.engine.status import EngineState
from app.scheduling.batch_pace import SHARED_S
from tests.support import batches as support
from tests.support import limit_requests
from tests.support.batch_runs import FINAL, check_sums, mixed, versions
from tests.support.batches import content, created, line, until, until_state

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")


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


async def test_lines_leave_half_of_the_window_to_other_requests(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    other = await limit_requests.caller_of(node, (await support.owner(node, "stock")).slug)
    await server.inference.complete(other, "one", Endpoint.COMPLETIONS, {"model": "demo", "prompt": "p"})
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(100), await versions(node), folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW // 2)
    await server.runner.looked()
    assert server.engine.running == support.WINDOW // 2
    server.inference.requested_at -= SHARED_S
    await until(node.database, batch.id, lambda _: server.engine.running == support.WINDOW)
    server.engine.may.set()
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 100


async def test_refused_requests_take_nothing_of_the_window(node, servers):
    """A tenant slows down no batch by requests that cost it nothing."""
    server = await servers.start(node)
    other = await limit_requests.caller_of(node, (await support.owner(node, "stock")).slug, requests_per_minute=1)
    body = {"model": "demo", "prompt": "p"}
    await server.inference.complete(other, "one", Endpoint.COMPLETIONS, body)
    at = server.inference.requested_at
    for error, refused in (
        (LimitExceeded, body),
        (NotFound, body | {"model": "fast"}),
        (InvalidRequest, body | {"max_tokens": -1}),
    ):
        with pytest.raises(error):
            await server.inference.complete(other, "two", Endpoint.COMPLETIONS, refused)
    assert server.inference.requested_at == at


async def test_no_line_starts_while_no_engine_runs(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.state = EngineState.RESTARTING
    batch = await created(server, pricing, mixed(20), await versions(node), folder=tmp_path)
    await server.runner.looked()
    assert not server.engine.asked
    server.engine.state = EngineState.READY
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 20


async def test_lines_wake_engine_replicas_that_are_asleep(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.state = EngineState.ASLEEP
    batch = await created(server, pricing, mixed(5), await versions(node), folder=tmp_path)
    assert (await until_state(node.database, batch.id, *FINAL)).completed == 5


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


@pytest.mark.parametrize("width", [1, 3])
async def test_width_caps_the_lines_in_flight(node, servers, pricing, tmp_path, width):
    server = await servers.start(node)
    server.engine.may.clear()
    batch = await created(server, pricing, mixed(20), await versions(node), at_once=4, width=width, folder=tmp_path)
    await until(node.database, batch.id, lambda _: server.engine.running == width)
    server.engine.may.set()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert ended.completed == 20
    assert server.engine.most == width


async def test_a_second_tenant_does_not_wait_for_the_first(node, servers, pricing, tmp_path):
    server = await servers.start(node)
    server.engine.may.clear()
    other = await support.owner(node, "retail")
    large = await created(server, pricing, mixed(400), await versions(node), at_once=100, folder=tmp_path)
    await until(node.database, large.id, lambda _: server.engine.running == support.WINDOW)
    small = await created(server, other, [line("one", "x"), line("two", "y")], {"demo": None}, folder=tmp_path)
    # Its chunk is here before the first tenant's lines go on.
    of_small = server.runner.workload.of_batch
    await until(node.database, small.id, lambda batch: [len(chunk.waiting) for chunk in of_small(batch.id)] == [2])
    server.engine.may.set()
    await until_state(node.database, small.id, *FINAL)
    order = [request.tenant for request in server.engine.order]
    assert max(index for index, tenant in enumerate(order) if tenant == "retail/batch") < 3 * support.WINDOW
    assert (await until_state(node.database, large.id, *FINAL)).completed == 400


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
