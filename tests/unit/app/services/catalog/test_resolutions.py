"""Name cache: one look-up between writes, and no answer from a state before the request."""

import asyncio

import pytest

from adapters.identity import ModelName
from app.services.catalog.resolutions import Resolutions
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

PRICES = ModelName("prices")


@pytest.fixture
async def tenant_id(node: Node) -> int:
    """Id of the tenant ``pricing``, whose adapter ``prices`` has one version."""
    tenant = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    return tenant.id


@pytest.fixture
def look_ups(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """List with one entry for each look-up that reaches the database."""
    asked: list[None] = []
    lookup = node.database.lookup

    async def counted(work):
        asked.append(None)
        return await lookup(work)

    monkeypatch.setattr(node.database, "lookup", counted)
    return asked


async def numbers(names: Resolutions, tenant_id: int, name: ModelName = PRICES, times: int = 1) -> list[int]:
    found = await asyncio.gather(*[names.find(tenant_id, name) for _ in range(times)])
    return [candidate.version.number for candidates in found for candidate in candidates]


async def test_a_commit_is_seen_by_the_next_question(node: Node, tenant_id: int) -> None:
    names = Resolutions(node.database)
    assert await numbers(names, tenant_id, times=3) == [1, 1, 1]
    for number in (2, 3):
        await node.publish("pricing", "prices", f"content {number}")
        assert await numbers(names, tenant_id, times=3) == [number] * 3


async def test_sqlite_is_asked_once_after_a_commit(
    node: Node, tenant_id: int, look_ups: list[None], database_kind: str
) -> None:
    names = Resolutions(node.database, monotonic=node.clock.monotonic)
    for content in ("b", "c"):
        await node.publish("pricing", "prices", content)
        await numbers(names, tenant_id, times=64)
        await numbers(names, tenant_id, times=64)
    # On PostgreSQL other servers write too, so every look-up reaches the database.
    assert len(look_ups) == (2 if database_kind == "sqlite" else 256)


async def test_a_name_that_means_nothing_is_asked_for_again(node: Node, tenant_id: int, look_ups: list[None]) -> None:
    names = Resolutions(node.database)
    for _ in range(3):
        assert await numbers(names, tenant_id, ModelName("nothing")) == []
    assert len(look_ups) == 3


async def test_one_tenant_never_gets_anothers_look_up(node: Node, tenant_id: int) -> None:
    names, other = Resolutions(node.database), (await node.tenants.create("other", actor="cli")).id
    own, foreign = await asyncio.gather(names.find(tenant_id, PRICES), names.find(other, PRICES))
    assert own
    assert not foreign
    assert await numbers(names, other) == []


async def test_as_many_names_are_remembered_as_there_is_room_for(
    node: Node, tenant_id: int, look_ups: list[None], database_kind: str
) -> None:
    for number in range(4):
        await node.publish("pricing", f"adapter-{number}", "a")
    names = Resolutions(node.database, capacity=3, monotonic=node.clock.monotonic)
    for number in range(4):
        await numbers(names, tenant_id, ModelName(f"adapter-{number}"))
    assert len(names._cache) == (3 if database_kind == "sqlite" else 0)


async def test_another_process_is_seen_within_a_second(node: Node, other_node: Node, tenant_id: int) -> None:
    names = Resolutions(node.database, monotonic=node.clock.monotonic)
    assert await numbers(names, tenant_id) == [1]
    await other_node.publish("pricing", "prices", "b")
    node.await_others()
    assert await numbers(names, tenant_id) == [2]
