"""Batches on both databases: creation, validation of all lines, the quote, lists, cancellation and leases."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.database import batch_chunks
from app.database.adapters import find_adapter, set_targets
from app.database.tables import audit
from app.database.tables import batches as batch_table
from app.database.tenants import find_tenant
from app.domain.access import Caller, Scope
from app.domain.batches import Batch, BatchOptions, BatchState, Chunk
from app.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, TooManyOpen
from app.domain.files import Purpose
from app.services.batches.service import NewBatch
from app.settings import BatchSettings
from tests.support.batch_admission import CHAT, BatchNode, jsonl, line, problems
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
async def here(node: Node, tmp_path: Path) -> AsyncIterator[BatchNode]:
    here = BatchNode(node, tmp_path)
    yield here
    await here.close()


@pytest.fixture
async def caller(here: BatchNode) -> Caller:
    caller = await here.caller("pricing")
    await here.node.publish("pricing", "prices", "a")
    await here.node.publish("pricing", "other", "b")
    return caller


async def chunks(here: BatchNode, batch: Batch) -> list[Chunk]:
    async with here.node.database.read() as connection:
        return await batch_chunks.chunks_of(connection, batch.id)


async def actions(here: BatchNode) -> list[tuple[str, str, Any]]:
    async with here.node.database.read() as connection:
        rows = await connection.execute(select(audit).where(audit.c.action.startswith("batch")).order_by(audit.c.id))
        return [(row.action, row.actor, row.after["status"]) for row in rows]


async def test_lines_become_chunks_of_one_version_and_a_quote(here: BatchNode, caller: Caller) -> None:
    await here.limits.prices.set("default", {"prompt": "1", "cached": None, "output": "2", "batch": "0.5"}, actor="cli")
    models = ["prices", "other", "prices@1", "demo", None, "pricing/other"]
    lines = [line(number, **({} if model is None else {"model": model})) for number, model in enumerate(models)]
    batch = await here.admitted(caller, jsonl(lines))
    assert (batch.state, batch.total, batch.blocked, batch.node) == (BatchState.IN_PROGRESS, 6, None, None)
    found = await chunks(here, batch)
    assert [(chunk.model, [place.number for place in chunk.lines]) for chunk in found] == [
        ("prices@1", [1, 3]), ("other@1", [2, 6]), ("demo", [4, 5]),
    ]  # fmt: skip
    assert [chunk.version_id is None for chunk in found] == [False, False, True]
    content = jsonl(lines)
    for chunk in found:
        for place in chunk.lines:
            raw = content[place.offset : place.offset + place.length]
            assert json.loads(raw)["custom_id"] == f"line {place.number - 1}"
    assert batch.quote is not None
    # <hi> has three tokens.
    assert (batch.quote.lines, batch.quote.prompt_tokens, batch.quote.most_output_tokens) == (6, 18, 24)
    assert batch.quote.most_cost == (18 * 10**6 + 24 * 2 * 10**6) // 2
    assert batch.quote.expected_s is None
    assert await actions(here) == [
        ("batch.create", caller.key_id, "validating"), ("batch.in_progress", "server", "in_progress"),
    ]  # fmt: skip


async def test_a_chunk_has_at_most_256_lines(here: BatchNode, caller: Caller) -> None:
    batch = await here.admitted(caller, jsonl(line(number, model="prices") for number in range(600)))
    assert [(chunk.number, len(chunk.lines)) for chunk in await chunks(here, batch)] == [(0, 256), (1, 256), (2, 88)]


async def test_a_name_means_one_version_for_the_whole_batch(here: BatchNode, caller: Caller) -> None:
    await here.node.publish("pricing", "prices", "c")
    async with here.node.database.write() as connection:
        tenant = await find_tenant(connection, "pricing", lock=True)
        assert tenant is not None
        adapter = await find_adapter(connection, tenant, "prices")
        assert adapter is not None
        ids = {}
        for number in (1, 2):
            version = await here.node.adapters.get_version("pricing", "prices", number)
            ids[version.key.version_id] = 50
        await set_targets(
            connection, adapter.id, "default", ids, at=here.node.clock(), actor="cli", action="alias.move"
        )
    here.node.await_others()
    lines = (line(number, model="prices", user=f"user {number}") for number in range(64))
    assert len(await chunks(here, await here.admitted(caller, jsonl(lines)))) == 1


async def test_the_other_endpoints(here: BatchNode, caller: Caller) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "hi", "max_tokens": 2},
        "/v1/responses": {"input": "hi", "max_output_tokens": 2},
        "/generate": {"inputs": "hi", "parameters": {"max_new_tokens": 2}},
    }
    for endpoint, body in bodies.items():
        batch = await here.admitted(
            caller, jsonl([line(1, url=endpoint, **body)]), endpoint=endpoint, options=BatchOptions("prices")
        )
        assert [chunk.model for chunk in await chunks(here, batch)] == ["prices@1"], batch.errors
        assert batch.quote is not None
        assert batch.quote.most_output_tokens == 2


#: Lines with the code and the start of the sentence of their problem.
BAD_LINES: list[tuple[bytes, str, str]] = [
    (b"not json\n", "invalid_value", "The line is not valid JSON: Expecting value at character 0."),
    (b"[1]\n", "invalid_value", "The line is an array; it must be a JSON object."),
    (b"\xff\n", "invalid_value", "The line is not UTF-8 at byte 0. Send JSONL in UTF-8."),
    (jsonl([line(1)]), "duplicate_custom_id", "custom_id is the same as in line 1; it must be unique in the file."),
    (
        jsonl([line(2) | {"custom_id": ""}]),
        "invalid_value",
        "custom_id is ''; it must be a text of 1 to 512 characters.",
    ),
    (
        jsonl([{name: value for name, value in line(2).items() if name != "custom_id"}]),
        "invalid_value",
        "The line has no custom_id; it must be a text of 1 to 512 characters.",
    ),
    (jsonl([line(3) | {"method": "GET"}]), "invalid_value", "method is 'GET'; it must be 'POST'."),
    (
        jsonl([line(4, url="/v1/unknown")]),
        "invalid_value",
        "url is '/v1/unknown'; it must be '/v1/chat/completions', the batch's endpoint.",
    ),
    (
        jsonl([line(5, url="/v1/completions")]),
        "invalid_value",
        "url is '/v1/completions'; it must be '/v1/chat/completions', the batch's endpoint.",
    ),
    (
        jsonl([line(6) | {"body": "x"}]),
        "invalid_value",
        "body is 'x'; it must be an object, the body of the request.",
    ),
    (jsonl([line(7, temperature=3)]), "invalid_value", "temperature is 3; it must be a number from 0 to 2."),
    (jsonl([line(8, model="nothing")]), "not_found", "There is no model 'nothing'."),
    (
        jsonl([line(9, stream=True)]),
        "unsupported_field",
        "stream is true. The answers of a batch are whole; leave it out.",
    ),
    (
        jsonl([line(10, messages=[{"role": "user", "content": "hi " * 64}])]),
        "context_length_exceeded",
        "This model's maximum context length is 64 tokens.",
    ),
    (b'{"custom_id": "' + b"x" * 2**20 + b'"}\n', "too_large", "The line is longer than 1048576 bytes"),
]


async def test_every_bad_line_has_a_sentence(here: BatchNode, caller: Caller) -> None:
    good = jsonl([line(1)])
    bad = BAD_LINES
    batch = await here.admitted(caller, good + b"\n" + b"".join(content for content, *_ in bad) + good.rstrip())
    found = problems(batch)
    # The blank line has a number, too.
    assert [number for number, *_ in found] == [*range(3, 3 + len(bad)), 3 + len(bad)]
    for (_, code, message), (_, expected_code, expected) in zip(found, bad, strict=False):
        assert code == expected_code
        assert message.startswith(expected)
    assert found[-1][1] == "duplicate_custom_id"
    assert batch.errors is not None
    assert batch.errors[10]["param"] == "body.temperature"
    assert await chunks(here, batch) == []
    assert (await actions(here))[-1] == ("batch.failed", "server", "failed")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", (None, "empty_file")),
        (b"\n \r\n", (None, "empty_file")),
        ("{}".encode("utf-16"), (1, "invalid_value")),
        (b"\xef\xbb\xbf{}", (1, "invalid_value")),
    ],
)
async def test_files_that_are_no_batch(
    here: BatchNode, caller: Caller, content: bytes, found: tuple[int | None, str]
) -> None:
    assert [(number, code) for number, code, _ in problems(await here.admitted(caller, content))] == [found]


async def test_a_byte_order_mark_and_windows_line_ends_are_fine(here: BatchNode, caller: Caller) -> None:
    content = b"\xef\xbb\xbf" + jsonl([line(1), line(2)]).replace(b"\n", b"\r\n")
    assert (await here.admitted(caller, content)).state is BatchState.IN_PROGRESS


async def test_the_first_1000_problems_are_told(here: BatchNode, caller: Caller) -> None:
    found = problems(await here.admitted(caller, b"x\n" * 1001))
    assert [number for number, *_ in found] == list(range(1, 1001))


async def test_a_line_too_many(node: Node, tmp_path: Path) -> None:
    here = BatchNode(node, tmp_path, BatchSettings(lines=5))
    caller = await here.caller("pricing")
    assert (await here.admitted(caller, jsonl(map(line, range(5))))).total == 5
    found = problems(await here.admitted(caller, jsonl(map(line, range(6)))))
    assert found == [
        (6, "too_many_lines", "The file has more than 5 lines, which is the limit. Split it into several batches.")
    ]
    await here.close()


async def test_a_budget_too_small_for_the_quote(here: BatchNode, caller: Caller) -> None:
    content = jsonl(map(line, range(10)))
    # 70 tokens: 30 of prompts, at most 40 of answers.
    await here.node.tenants.update("pricing", limits={"tokens_per_day": 34}, actor="cli")
    assert (await here.admitted(caller, content, completion_window="48h")).state is BatchState.IN_PROGRESS
    [(number, code, message)] = problems(await here.admitted(caller, content, completion_window="10h"))
    assert (number, code) == (None, "insufficient_quota")
    assert message == (
        "The batch can use up to 70 tokens, and tokens_per_day of this tenant leaves 34 until the end of its window. "
        "Set a smaller max_tokens, send fewer lines, or choose a longer completion_window."
    )
    await here.node.tenants.update("pricing", limits=None, actor="cli")
    await here.limits.prices.set("base", {"prompt": "1", "cached": None, "output": "1"}, actor="cli")
    key = await here.caller("pricing", limits={"cost_per_month": "0.00005"})
    code, message = problems(await here.admitted(key, content))[0][1:]
    assert code == "insufficient_quota"
    assert message.startswith("The batch can cost up to 0.00007, and cost_per_month of this key leaves 0.00005")


async def test_a_line_above_the_limit_of_a_request(here: BatchNode, caller: Caller) -> None:
    await here.node.tenants.update("pricing", limits={"tokens_per_request": 6}, actor="cli")
    [(number, code, message)] = problems(await here.admitted(caller, jsonl([line(1, max_tokens=3), line(2)])))
    assert (number, code) == (2, "invalid_value")
    assert message.startswith("tokens_per_request would be 7 with this request; the limit of this tenant is 6.")


@pytest.mark.parametrize("window", ["9m", "10", "8d", "169h", "0h", "24H", "1w", "", "-1h", "24h ", "99999999d"])
async def test_windows_outside_ten_minutes_to_seven_days(here: BatchNode, caller: Caller, window: str) -> None:
    with pytest.raises(InvalidRequest, match="it must be 10m to 7d"):
        await here.create(caller, b"", completion_window=window)


@pytest.mark.parametrize(("window", "seconds"), [("10m", 600), ("24h", 86400), ("7d", 604800), ("168h", 604800)])
async def test_the_window_ends_after_the_creation(here: BatchNode, caller: Caller, window: str, seconds: int) -> None:
    batch = await here.create(caller, b"", completion_window=window)
    assert batch.expires_at - batch.created_at == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint is '/v1/embeddings'; it must be one of /v1/chat/completions, "),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata has 17 keys; the limit is 16."),
        ({"metadata": {"k" * 65: ""}}, "A key of metadata has 65 characters; it must have 1 to 64."),
        ({"metadata": {"k": "v" * 513}}, "metadata.k has 513 characters; the limit is 512."),
        ({"metadata": {"k": "\0"}}, "metadata has a NUL or an unpaired surrogate"),
        ({"metadata": {"k": "\ud800"}}, "metadata has a NUL or an unpaired surrogate"),
        ({"output_lifetime_s": 3599}, "output_expires_after.seconds is 3599; it must be 3600 to 2592000."),
        ({"options": BatchOptions(width=0)}, "tenora.width is 0; it must be 1 to 4096."),
    ],
)
async def test_fields_that_are_refused(here: BatchNode, caller: Caller, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await here.create(caller, b"", **options)
    assert refused.value.message.startswith(message)
    assert await actions(here) == []


async def test_files_that_no_batch_can_read(here: BatchNode, caller: Caller) -> None:
    other = await here.caller("retail")
    foreign = await here.upload(other, jsonl([line(1)]))
    output = await here.upload(caller, b"", purpose=Purpose.BATCH_OUTPUT)
    expired = await here.upload(caller, b"", lifetime_s=60)
    here.node.clock.advance(60)

    async def refused(file_id: str, error: type[Exception]) -> str:
        with pytest.raises(error) as found:
            await here.service.create(caller, NewBatch(file_id, CHAT, "24h"))
        return str(found.value).replace(file_id, "ID")

    unknown = await refused(f"file-{'0' * 32}", NotFound)
    assert await refused(foreign.id, NotFound) == unknown == "There is no file 'ID'."
    assert await refused("file\0", NotFound) == "There is no file 'file\\x00'."
    assert "has the purpose batch_output; it must be batch" in await refused(output.id, InvalidRequest)
    assert "expired at 2026-03-01 12:01:00 UTC. Upload it again." in await refused(expired.id, InvalidRequest)


async def test_the_key_needs_inference_and_the_default_model(here: BatchNode, caller: Caller) -> None:
    batch_only = Caller(caller.key_id, caller.tenant_id, caller.tenant_slug, frozenset({Scope.BATCH}), caller.salt)
    with pytest.raises(Forbidden, match="lacks the scope inference"):
        await here.create(batch_only, b"")
    with pytest.raises(NotFound, match="There is no model 'nothing'") as refused:
        await here.create(caller, b"", options=BatchOptions("nothing"))
    assert refused.value.param == "tenora.model"
    restricted = await here.caller("pricing", adapters=["prices"])
    with pytest.raises(Forbidden, match="restricted to certain adapters"):
        await here.create(restricted, b"", options=BatchOptions("other"))


async def test_a_restricted_key_may_not_use_other_models(here: BatchNode, caller: Caller) -> None:
    assert caller.tenant_slug == "pricing"
    restricted = await here.caller("pricing", adapters=["prices"])
    lines = [line(number, model=model) for number, model in enumerate(["prices", "other", "prices@1", "other", "demo"])]
    found = problems(await here.admitted(restricted, jsonl(lines)))
    text = "This key is restricted to certain adapters and may not use"
    assert found == [(2, "insufficient_scope", f"{text} 'other'."), (4, "insufficient_scope", f"{text} 'other'."),
                     (5, "insufficient_scope", f"{text} 'demo'.")]  # fmt: skip
    # Each name is refused once.
    assert here.refusals == [f"{text} 'other'.", f"{text} 'demo'."]


async def test_the_caps_of_open_batches_and_waiting_lines(node: Node, tmp_path: Path) -> None:
    here = BatchNode(node, tmp_path, BatchSettings(open_batches=2, waiting_lines=5))
    caller, other = await here.caller("pricing"), await here.caller("retail")
    content = jsonl(map(line, range(3)))
    first = await here.admitted(caller, content)
    too_many = problems(await here.admitted(caller, content))
    assert [code for _, code, _ in too_many] == ["too_many_waiting_lines"]
    assert "The batch has 3 lines, and 3 lines of other batches of this tenant wait" in too_many[0][2]
    await here.admitted(caller, jsonl(map(line, range(2))))
    with pytest.raises(TooManyOpen, match="The tenant has 2 unfinished batches; the limit is 2"):
        await here.create(caller, content)
    more = BatchNode(node, tmp_path, BatchSettings(waiting_lines=5))
    with pytest.raises(TooManyOpen, match="have 5 waiting lines; the limit is 5"):
        await more.create(caller, content)
    await more.close()
    # Another tenant is not affected.
    assert (await here.admitted(other, content)).state is BatchState.IN_PROGRESS
    await here.service.cancel(caller, first.id)
    await here.close()


async def test_batches_are_listed_newest_first_page_by_page(here: BatchNode, caller: Caller) -> None:
    other = await here.caller("retail")
    created = []
    for _ in range(5):
        created.append(await here.create(caller, b""))
        await here.create(other, b"")
        here.node.clock.advance(1)
    newest = [batch.id for batch in reversed(created)]
    first = await here.service.list(caller, limit=2)
    second = await here.service.list(caller, limit=2, after=newest[1])
    last = await here.service.list(caller, limit=2, after=newest[3])
    assert [[batch.id for batch in page.data] for page in (first, second, last)] == [
        newest[:2], newest[2:4], newest[4:],
    ]  # fmt: skip
    assert [page.has_more for page in (first, second, last)] == [True, True, False]
    for after in (f"batch_{'0' * 16}", "x", "\0", (await here.service.list(other, limit=1)).data[0].id):
        with pytest.raises(NotFound, match="There is no batch"):
            await here.service.list(caller, after=after)
    with pytest.raises(InvalidRequest, match="limit is 101; it must be 1 to 100"):
        await here.service.list(caller, limit=101)


async def test_the_platform_lists_all_tenants_batches(here: BatchNode, caller: Caller) -> None:
    other = await here.caller("retail")
    mine, theirs = await here.admitted(caller, jsonl([line(1)])), await here.create(other, b"")
    page = await here.service.list_all()
    assert {(slug, batch.id) for slug, batch in page.data} == {("pricing", mine.id), ("retail", theirs.id)}
    assert [batch.id for _, batch in (await here.service.list_all(tenant="retail")).data] == [theirs.id]
    assert [batch.id for _, batch in (await here.service.list_all(state=BatchState.IN_PROGRESS)).data] == [mine.id]
    with pytest.raises(NotFound, match="There is no tenant 'unknown'"):
        await here.service.list_all(tenant="unknown")


async def test_cancelling(here: BatchNode, caller: Caller) -> None:
    running, waiting = await here.admitted(caller, jsonl([line(1)])), await here.create(caller, jsonl([line(1)]))
    cancelled = await here.service.cancel(caller, waiting.id)
    assert cancelled.state is BatchState.CANCELLED
    assert set(cancelled.times) == {BatchState.CANCELLING, BatchState.CANCELLED}
    cancelling = await here.service.cancel(caller, running.id)
    assert cancelling.state is BatchState.CANCELLING
    for batch in (cancelled, cancelling):
        assert await here.service.cancel(caller, batch.id) == batch
    assert [row for row in await actions(here) if row[0] == "batch.cancel"] == [
        ("batch.cancel", caller.key_id, "cancelled"), ("batch.cancel", caller.key_id, "cancelling"),
    ]  # fmt: skip
    failed = await here.admitted(caller, b"x")
    with pytest.raises(Conflict, match=f"The batch {failed.id} is failed and cannot be cancelled."):
        await here.service.cancel(caller, failed.id)
    # The validation of a batch that was cancelled meanwhile changes nothing.
    await here.admit()
    assert (await here.found(waiting)).state is BatchState.CANCELLED


async def test_a_revoked_key_cancels_its_batches_an_expired_one_not(here: BatchNode, caller: Caller) -> None:
    revoked, rotated = await here.caller("pricing"), await here.caller("pricing")
    content = jsonl([line(1)])
    running, kept = await here.admitted(revoked, content), await here.create(rotated, content)
    waiting = await here.create(revoked, content)
    await here.node.keys.rotate("pricing", rotated.key_id, grace_s=0, actor="cli")
    await here.node.keys.revoke("pricing", revoked.key_id, actor="cli")
    here.node.clock.advance(1)
    await here.admit()
    assert [(await here.found(batch)).state for batch in (running, waiting, kept)] == [
        BatchState.CANCELLING, BatchState.CANCELLED, BatchState.IN_PROGRESS,
    ]  # fmt: skip
    reason = (await here.found(running)).reason
    assert reason is not None
    assert (reason.code, reason.message) == (
        "key_revoked",
        f"The key {revoked.key_id} that created the batch was revoked.",
    )


async def test_a_disabled_tenants_batch_waits_until_it_is_enabled(here: BatchNode, caller: Caller) -> None:
    batch = await here.create(caller, jsonl([line(1)]))
    await here.node.tenants.update("pricing", disabled=True, actor="cli")
    await here.admit()
    blocked = await here.found(batch)
    assert (blocked.state, blocked.blocked and blocked.blocked.code) == (BatchState.VALIDATING, "tenant_disabled")
    await here.node.tenants.update("pricing", disabled=False, actor="cli")
    # It is looked at again after some seconds.
    here.node.clock.advance(5)
    await here.admit()
    assert (await here.found(batch)).state is BatchState.IN_PROGRESS


async def test_a_window_that_ends_before_the_validation(here: BatchNode, caller: Caller) -> None:
    batch = await here.create(caller, jsonl([line(1)]), completion_window="10m")
    here.node.clock.advance(600)
    await here.admit()
    assert (await here.found(batch)).state is BatchState.EXPIRED


async def test_no_tenant_waits_for_the_backlogs_of_others(here: BatchNode, caller: Caller) -> None:
    """Four tenants have two batches each, and a node validates four at once. The fifth tenant is next."""
    content = jsonl([line(1, model="demo")])
    for number in range(4):
        busy = await here.caller(f"busy-{number}")
        for _ in range(2):
            await here.create(busy, content)
    here.node.clock.advance(1)
    late = await here.create(caller, content)
    await here.admit()
    assert (await here.found(late)).state is BatchState.VALIDATING
    await here.admit()
    assert (await here.found(late)).state is BatchState.IN_PROGRESS


async def test_another_node_takes_over_when_one_is_lost(
    here: BatchNode, caller: Caller, other_node: Node, tmp_path: Path
) -> None:
    there = BatchNode(other_node, tmp_path, name="b" * 32)
    batch = await here.create(caller, jsonl([line(1)]))
    states = []

    async def meanwhile() -> None:
        await there.admit()
        states.append((await here.found(batch)).state)
        here.node.clock.advance(30)
        await there.admit()
        states.append((await here.found(batch)).state)

    here.after_validation = meanwhile
    await here.admit()
    assert states == [BatchState.VALIDATING, BatchState.IN_PROGRESS]
    assert len(await chunks(here, batch)) == 1
    assert [action for action, *_ in await actions(here)] == ["batch.create", "batch.in_progress"]
    await there.close()


async def test_a_batch_that_is_cancelled_during_its_validation(here: BatchNode, caller: Caller) -> None:
    batch = await here.create(caller, jsonl([line(1)]))

    async def meanwhile() -> None:
        await here.service.cancel(caller, batch.id)

    here.after_validation = meanwhile
    await here.admit()
    assert (await here.found(batch)).state is BatchState.CANCELLED
    assert await chunks(here, batch) == []


async def test_a_lost_file_fails_the_batch(here: BatchNode, caller: Caller) -> None:
    batch = await here.create(caller, jsonl([line(1)]))
    for path in (here.folder / "blobs" / "sha256").glob("*/*"):
        path.unlink()
    await here.admit()
    assert "has lost the bytes of" in problems(await here.found(batch))[0][2]


async def test_the_expected_end_is_that_of_the_tenants_last_rate(here: BatchNode, caller: Caller) -> None:
    first = await here.admitted(caller, jsonl(map(line, range(10))))
    here.node.clock.advance(5)
    async with here.node.database.write() as connection:
        done = update(batch_table).where(batch_table.c.id == first.id).values(completed=5)
        await connection.execute(done)
    second = await here.admitted(caller, jsonl(map(line, range(5))))
    assert second.quote is not None
    # One line a second, and ten lines wait.
    assert second.quote.expected_s == 10.0
