"""Cached queries: SQLite repeats one only after a change, PostgreSQL repeats it always."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import ModelName
from app.database.cached_query import CachedQuery
from app.database.tables import audit, tenants
from app.domain.errors import RegistryUnavailable
from app.services.limits.prices import PriceService
from app.services.operations.nodes import NodeService
from tests.contract.registry import Node

pytest_plugins = ("tests.contract.registry_fixtures",)

PRICE = {"prompt": "1", "cached": None, "output": "2"}


class Looks:
    """Query that counts the tenants and counts its own calls."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self, connection: AsyncConnection) -> int:
        self.made += 1
        return int(await connection.scalar(select(func.count()).select_from(tenants)) or 0)


def spared(node: Node, looks: int) -> int:
    """Return the number of queries to expect where SQLite makes one."""
    return looks if node.database.is_postgresql else 1


async def test_nobody_looks_again_before_something_is_changed(node: Node, other_node: Node) -> None:
    looks = Looks()
    count = CachedQuery(node.database, looks)
    assert [await count() for _ in range(3)] == [0, 0, 0]
    assert looks.made == spared(node, 3)
    for changing, known in ((node, 1), (other_node, 2)):
        await changing.tenants.create(f"tenant-{known}", actor="cli")
        looks.made = 0
        assert [await count() for _ in range(3)] == [known, known, known]
        assert looks.made == spared(node, 3)


async def test_what_servers_write_down_by_themselves_is_no_change(node: Node, other_node: Node) -> None:
    looks = Looks()
    count = CachedQuery(node.database, looks)
    await count()
    for writing in (node, other_node):
        await NodeService(writing.database, "n", "name", clock=node.clock).register()
        await NodeService(writing.database, "n", "name", clock=node.clock).beat()
        await count()
    assert looks.made == spared(node, 3)


async def test_what_may_change_without_a_row_in_the_trail_is_asked_for_again(node: Node) -> None:
    looks = Looks()
    count = CachedQuery(node.database, looks, kept=lambda found: found == 0)
    await count()
    await count()
    assert looks.made == spared(node, 2)
    await node.tenants.create("pricing", actor="cli")
    looks.made = 0
    assert [await count() for _ in range(3)] == [1, 1, 1]
    assert looks.made == 3


async def test_a_change_beside_the_look_is_not_overlooked(node: Node, other_node: Node) -> None:
    class Late(Looks):
        async def __call__(self, connection: AsyncConnection) -> int:
            found = await super().__call__(connection)
            if self.made == 1:
                await other_node.tenants.create("pricing", actor="cli")
            return found

    count = CachedQuery(node.database, Late())
    assert [await count() for _ in range(3)] == [0, 1, 1]


async def test_a_look_that_fails_is_made_again(node: Node) -> None:
    class Failing(Looks):
        async def __call__(self, connection: AsyncConnection) -> int:
            found = await super().__call__(connection)
            if self.made == 1:
                raise RegistryUnavailable("gone")
            return found

    looks = Failing()
    count = CachedQuery(node.database, looks)
    with pytest.raises(RegistryUnavailable):
        await count()
    assert [await count() for _ in range(2)] == [0, 0]
    assert looks.made == 1 + spared(node, 2)


async def test_a_trail_that_was_cut_off_is_another(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    looks = Looks()
    count = CachedQuery(node.database, looks)
    await count()
    async with node.database.write() as connection:
        await connection.execute(audit.delete())
    await count()
    assert looks.made == 2


async def test_prices_are_read_once_on_every_server_that_they_change_for(node: Node, other_node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "1")
    tenant = (await node.tenants.get("pricing")).id
    version = await node.adapters.resolve(tenant, ModelName("prices"))
    here, there = PriceService(node.database, clock=node.clock), PriceService(other_node.database)
    for _ in range(2):
        await there.refresh()
    free = there.of(version)
    await here.set("pricing/prices", PRICE, actor="k")
    await there.refresh()
    assert there.of(version) == here.of(version) != free
    await here.unset("pricing/prices", actor="k")
    await there.refresh()
    assert there.of(version) == free
