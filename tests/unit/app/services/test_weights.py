"""Scheduling weight of a tenant: storage, updates, audit, and propagation to callers."""

import math

import pytest
from sqlalchemy import select

from app.database.tables import audit
from app.domain.errors import InvalidRequest
from tests.support.registry import Node, SettableClock, recorded_statements

pytest_plugins = ("tests.support.registry_fixtures",)


async def test_every_tenant_has_a_weight_of_one_until_it_gets_another(node: Node) -> None:
    assert (await node.tenants.create("pricing", actor="cli")).weight == 1
    assert (await node.tenants.create("retail", weight=4, actor="cli")).weight == 4
    changed = await node.tenants.update("pricing", weight=0.5, actor="cli")
    assert changed.weight == 0.5
    assert await node.tenants.get("pricing") == changed
    assert (await node.tenants.update("pricing", name="Prices", actor="cli")).weight == 0.5
    assert {tenant.slug: tenant.weight for tenant in (await node.tenants.list()).data} == {"pricing": 0.5, "retail": 4}


@pytest.mark.parametrize("weight", [0, -1, 0.0009, 1000.5, math.inf, -math.inf, math.nan])
async def test_what_is_no_share_is_refused(node: Node, weight: float) -> None:
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(InvalidRequest, match=r"^weight is .*; it must be a number from 0.001 to 1000") as caught:
        await node.tenants.update("pricing", weight=weight, actor="cli")
    assert caught.value.param == "weight"
    with pytest.raises(InvalidRequest, match=r"^weight is .*; it must be"):
        await node.tenants.create("retail", weight=weight, actor="cli")
    assert (await node.tenants.get("pricing")).weight == 1


@pytest.mark.parametrize("weight", [0.001, 1000])
async def test_the_ends_are_allowed(node: Node, weight: float) -> None:
    assert (await node.tenants.create("pricing", weight=weight, actor="cli")).weight == weight


async def test_a_change_leaves_an_audit_row(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    for weight in (3, 3, 1):
        await node.tenants.update("pricing", weight=weight, actor="admin-key")
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).order_by(audit.c.id))).all()
    usual = {"name": "pricing", "disabled": False}
    heavy = usual | {"weight": 3}
    assert [(row.actor, row.action, row.before, row.after) for row in rows] == [
        ("cli", "tenant.create", None, usual),
        ("admin-key", "tenant.update", usual, heavy),
        ("admin-key", "tenant.update", heavy, usual),
    ]


async def test_a_new_weight_reaches_other_nodes_within_a_second(
    node: Node, other_node: Node, clock: SettableClock
) -> None:
    await node.tenants.create("pricing", weight=2, actor="cli")
    text = (await node.keys.create("pricing", name="till", actor="cli")).text
    for place in (node, other_node):
        caller = await place.keys.authenticate(text)
        assert (caller.tenant_slug, caller.weight) == ("pricing", 2)
    await node.tenants.update("pricing", weight=8, actor="cli")
    assert (await node.keys.authenticate(text)).weight == 8
    clock.advance(1)
    assert (await other_node.keys.authenticate(text)).weight == 8


async def test_the_weight_costs_no_query_of_its_own(node: Node, registry_url: str) -> None:
    await node.tenants.create("pricing", weight=2, actor="cli")
    text = (await node.keys.create("pricing", name="till", actor="cli")).text
    with recorded_statements(registry_url) as statements:
        assert (await node.keys.authenticate(text)).weight == 2
    assert len(statements) == 1


async def test_a_platform_key_has_the_usual_weight(node: Node) -> None:
    text = (await node.keys.create(None, name="first", actor="cli")).text
    assert (await node.keys.authenticate(text)).weight == 1
