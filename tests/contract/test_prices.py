"""Prices and costs on both databases: fixed when a request arrives, exact in every sum."""

import asyncio
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from adapters.identity import ModelName
from app.database import limit_accounts
from app.database.tables import audit, usage, usage_hours
from app.domain.errors import BudgetExceeded, InvalidRequest, NotFound
from app.domain.limits.limits import Limits
from app.domain.money import FREE, UNIT, Price, parse_amount, parse_price
from app.domain.usage import Grouping
from app.services.limits.prices import PriceService
from app.services.limits.shared import SharedAccounts
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from tests.support.limit_requests import Sizes, answered, caller_of, request, service
from tests.support.registry import Node
from tests.support.serving import NoEngine
from tests.support.usage_records import NOON, added, record, sums

pytest_plugins = ("tests.support.registry_fixtures",)

CHEAP = {"prompt": "0.15", "cached": "0.075", "output": "0.6"}
DEAR = {"prompt": "3", "cached": None, "output": "15"}


def price(prompt: str, cached: str, output: str) -> Price:
    return Price(*(parse_price(text) for text in (prompt, cached, output)))


async def test_an_adapters_own_price_the_bases_the_default_or_none(node: Node, other_node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "1")
    await node.publish("pricing", "other", "2")
    tenant = (await node.tenants.get("pricing")).id
    prices, other, free = [await node.adapters.resolve(tenant, ModelName(name)) for name in ("prices", "other")] + [
        None
    ]
    service, elsewhere = PriceService(node.database, clock=node.clock), PriceService(other_node.database)
    assert {service.of(one) for one in (prices, other, free)} == {FREE}
    await service.set("default", CHEAP, actor="k")
    assert {service.of(one) for one in (prices, other, free)} == {price("0.15", "0.075", "0.6")}
    await service.set("pricing/prices", DEAR, actor="k")
    await service.set("base", DEAR | {"output": "1"}, actor="k")
    shown = [price("3", "3", "15"), price("0.15", "0.075", "0.6"), price("3", "3", "1")]
    assert [service.of(one) for one in (prices, other, free)] == shown
    assert elsewhere.of(prices) == FREE
    await elsewhere.refresh()
    assert [elsewhere.of(one) for one in (prices, other, free)] == shown
    assert list(await elsewhere.list()) == ["default", "base", "pricing/prices"]
    await service.unset("pricing/prices", actor="k")
    assert service.of(prices) == shown[1]
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).where(audit.c.action.startswith("price")))).all()
    assert [(row.action, row.tenant, row.subject) for row in rows] == [
        ("price.set", None, "default"), ("price.set", "pricing", "pricing/prices"), ("price.set", None, "base"),
        ("price.unset", "pricing", "pricing/prices"),
    ]  # fmt: skip
    assert rows[1].after == {"prompt": "3", "cached": "3", "output": "15"}


async def test_the_factor_of_batches_is_kept_and_audited(node: Node, other_node: Node) -> None:
    service, elsewhere = PriceService(node.database, clock=node.clock), PriceService(other_node.database)
    halved = await service.set("default", CHEAP | {"batch": "0.5"}, actor="k")
    await elsewhere.refresh()
    assert elsewhere.of(None) == halved != price("0.15", "0.075", "0.6")
    assert halved.of_batch == price("0.075", "0.0375", "0.3")
    await service.set("default", CHEAP, actor="k")
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).where(audit.c.action == "price.set"))).all()
    assert [row.after.get("batch") for row in rows] == ["0.5", None]
    with pytest.raises(InvalidRequest, match="batch is '11'; it must be a decimal as text"):
        await service.set("base", CHEAP | {"batch": "11"}, actor="k")


async def test_a_changed_price_reaches_every_server(node: Node, other_node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "1")
    tenant = (await node.tenants.get("pricing")).id
    version = await node.adapters.resolve(tenant, ModelName("prices"))
    here, there = PriceService(node.database, clock=node.clock), PriceService(other_node.database)
    for _ in range(2):
        await there.refresh()
    free = there.of(version)
    await here.set("pricing/prices", DEAR, actor="k")
    await there.refresh()
    assert there.of(version) == here.of(version) != free
    await here.unset("pricing/prices", actor="k")
    await there.refresh()
    assert there.of(version) == free


async def test_what_has_no_price_and_what_is_none(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    service = PriceService(node.database)
    for model in ("pricing/prices", "unknown/prices", "pricing", "", "pricing/prices@1"):
        with pytest.raises(NotFound):
            await service.set(model, CHEAP, actor="k")
    with pytest.raises(NotFound, match="'base' has no price"):
        await service.unset("base", actor="k")
    for name in CHEAP:
        with pytest.raises(InvalidRequest, match=f"{name} is '-1'; it must be a decimal as text"):
            await service.set("base", CHEAP | {name: "-1"}, actor="k")


async def test_a_record_keeps_the_cost_of_when_it_came(node: Node, tmp_path) -> None:
    await node.tenants.create("pricing", actor="cli")
    engine, caller = NoEngine(), await caller_of(node, "pricing")
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    limits = service(node)
    meter = Meter(ledger, limits, clock=node.clock, monotonic=node.clock.monotonic)
    await limits.prices.set("default", CHEAP, actor="k")
    permit = await limits.admit(caller, request("0" * 32))
    await limits.prices.set("default", DEAR, actor="k")
    assert permit.price == price("0.15", "0.075", "0.6")
    await answered(meter, limits, caller, engine, request("1" * 32))
    await limits.prices.set("default", CHEAP, actor="k")
    await ledger.close()
    async with node.database.read() as connection:
        (cost,) = (await connection.execute(select(usage.c.cost))).scalars()
    # Four prompt tokens and three output tokens, priced per million.
    assert cost == parse_amount("0.000057")
    assert (await sums(node))[()].cost == cost


async def test_sums_of_money_carry_and_never_round(node: Node, other_node: Node) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    costs = [UNIT - 1, 1, 2 * UNIT + 7, 10**25, 0, UNIT // 2, UNIT // 2]
    records = [record(n, tenant, cost=cost, at=NOON + timedelta(minutes=20 * n)) for n, cost in enumerate(costs)]
    await asyncio.gather(*(added((node, other_node)[n % 2].database, [one]) for n, one in enumerate(records)))
    assert await added(node.database, records) == 0
    assert (await sums(node))[()].cost == sum(costs)
    by_hour = await sums(node, Grouping.HOUR)
    assert [used.cost for used in by_hour.values()] == [sum(costs[:3]), sum(costs[3:6]), costs[6]]
    async with node.database.read() as connection:
        picos = (await connection.execute(select(usage_hours.c.cost_picos))).scalars().all()
    assert all(0 <= one < UNIT for one in picos)


async def test_a_budget_of_money_takes_the_most_and_gives_back(node: Node, tmp_path, monkeypatch) -> None:
    await node.tenants.create("pricing", actor="cli")
    changed = await node.tenants.update("pricing", limits={"cost_per_month": "0.00045"}, actor="cli")
    assert changed.limits == Limits(cost_per_month=parse_amount("0.00045"))
    assert (await node.tenants.get("pricing")).limits == changed.limits
    engine, caller = NoEngine(), await caller_of(node, "pricing")
    assert caller.limits == changed.limits
    sizes = Sizes(20)
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    limits = service(node, sizes)
    await limits.prices.set("default", DEAR, actor="k")
    meter = Meter(ledger, limits, clock=node.clock, monotonic=node.clock.monotonic)
    # Each can cost 0.0003 and costs 0.000057.
    for number in range(3):
        await answered(meter, limits, caller, engine, request(f"{number}" * 32))
    said = "cost_per_month would be 0.000471 with this request; the limit of this tenant is 0.00045."
    with pytest.raises(BudgetExceeded, match=said):
        await limits.admit(caller, request("3"))
    await ledger.close()
    again = service(node, sizes)
    await again.prices.refresh()
    await again.accounts.restore()
    with pytest.raises(BudgetExceeded, match=said):
        await again.admit(caller, request("3"))
    sizes.most = 18
    await again.admit(caller, request("4"))
    sizes.most = 31
    with pytest.raises(InvalidRequest, match=r"cost_per_month would be 0\.000906 with this request; .* can never fit"):
        await again.admit(caller, request("5"))
    if node.database.is_postgresql:

        async def moment(_connection: object) -> datetime:
            return node.clock()

        monkeypatch.setattr(limit_accounts, "moment", moment)
        accounts, subject = SharedAccounts(node.database, "1" * 32), ("tenant", str(caller.tenant_id))
        for most, fits in ((UNIT, False), (parse_amount("0.000279"), True), (1, False)):
            decision = await accounts.take("6" * 31 + str(most)[0], {subject: changed.limits}, 0, most)
            assert isinstance(decision.outcome, Exception) is not fits


@pytest.mark.parametrize("amount", [1, 1.5, "-1", "1.0000000000001", "ten"])
async def test_a_budget_that_is_no_amount_is_named(node: Node, amount: object) -> None:
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(InvalidRequest, match="it must be a decimal as text") as refused:
        await node.tenants.update("pricing", limits={"cost_per_day": amount}, actor="cli")
    assert refused.value.param == "limits.cost_per_day"
