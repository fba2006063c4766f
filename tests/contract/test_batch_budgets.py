"""Budgets and limits of lines, on both databases."""

import re
from collections.abc import Mapping

import pytest

from adapters.identity import parse_model_name
from app.domain.adapters import Version
from app.domain.batches import BatchState, Quote
from app.domain.errors import BudgetExceeded
from app.domain.limits.limits import TokenBound
from app.services.batches.causes import cause_of
from app.services.catalog.shares import SharingService
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from tests.support import batch_admission as admission
from tests.support.batch_admission import BatchNode, jsonl, problems
from tests.support.batch_runs import FINAL, check_sums, mixed, versions
from tests.support.batches import created, line, until, until_state
from tests.support.limit_requests import request
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")


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


async def share_with_budget(node: Node, limits: Mapping[str, object] | None) -> Version:
    """Publish an adapter of another tenant, share it with ``pricing``, and limit all of its callers together."""
    await node.tenants.create("owner", actor="cli")
    version = await node.publish("owner", "fast", "a")
    await SharingService(node.database, clock=node.clock).share(
        "owner", "fast", "pricing", must_exist=True, actor="cli"
    )
    await node.adapters.limit("owner", "fast", limits, actor="cli")
    return version


async def test_a_shared_adapters_budget_blocks_as_a_request_is_refused(node, servers, pricing, tmp_path):
    server, limits = await servers.start(node), {"tokens_per_day": 100}
    version = await share_with_budget(node, limits)
    lines = [line(f"row {number:02}", f"p{number:02}", model="owner/fast") for number in range(60)]
    batch = await created(server, pricing, lines, {"owner/fast": version}, folder=tmp_path)
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None and batch.completed > 5)
    assert 5 < blocked.completed < 60
    assert (blocked.failed, blocked.errors, blocked.reason) == (0, None, None)
    # A request learns the same two things: the name of the limit, and the end of the day.
    service = LimitService(lambda _: TokenBound(50, 50), server.accounts, PriceService(node.database))
    (entry,) = server.runner.workload.batches.values()
    resolved = await node.adapters.resolve(pricing.tenant_id, parse_model_name("owner/fast"))
    with pytest.raises(BudgetExceeded) as refused:
        await service.admit(entry.entry.caller, request("one"), resolved)
    assert refused.value.message.startswith("tokens_per_day would be above the limit that the adapter's owner has set.")
    assert blocked.blocked == cause_of(refused.value, node.clock())
    assert not re.search(r"owner/|\b100\b", blocked.blocked.message)
    await node.adapters.limit("owner", "fast", {"tokens_per_day": 10_000}, actor="cli")
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.blocked) == (BatchState.COMPLETED, 60, None)
    await check_sums(server, batch)


@pytest.mark.parametrize("limits", [None, {"tokens_per_day": 0}, {"tokens_per_day": 34}, {"cost_per_month": "0.00001"}])
async def test_the_check_hides_the_budget_of_a_shared_adapter(node, tmp_path, limits):
    """A comparison would tell the rest of the budget, to the token, to a caller that uses nothing."""
    here = BatchNode(node, tmp_path)
    caller = await here.caller("pricing")
    await here.limits.prices.set("base", {"prompt": "1", "cached": None, "output": "1"}, actor="cli")
    await here.limits.prices.set("default", {"prompt": "1", "cached": None, "output": "1"}, actor="cli")
    await share_with_budget(node, limits)
    content = jsonl(admission.line(number, model="owner/fast") for number in range(10))
    batch = await here.admitted(caller, content, completion_window="10m")
    assert (batch.state, batch.errors, batch.blocked, batch.reason) == (BatchState.IN_PROGRESS, None, None, None)
    assert batch.quote == Quote(10, 30, 40, 70 * 10**6, None)
    await here.close()


async def test_the_check_tells_the_budget_of_the_tenants_adapter(node, tmp_path):
    here = BatchNode(node, tmp_path)
    await here.caller("pricing")
    await share_with_budget(node, {"tokens_per_day": 34})
    owner = await here.caller("owner")
    content = jsonl(admission.line(number, model="fast") for number in range(10))
    [(number, code, message)] = problems(await here.admitted(owner, content, completion_window="10m"))
    assert (number, code) == (None, "insufficient_quota")
    assert message.startswith("The batch can use up to 70 tokens, and tokens_per_day of this adapter leaves 34")
    await here.close()
