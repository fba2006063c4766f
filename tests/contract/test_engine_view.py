"""Engine status on both databases: visibility of versions, their names, and the cost of the query."""

from dataclasses import replace

import pytest

from app.database.residency import KnownVersion, known_versions
from app.database.versions import insert_version
from app.domain.adapters import Version
from app.domain.errors import NotFound
from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent
from app.services.catalog.shares import SharingService
from app.services.operations.engine_view import EngineViewService, OwnVersion
from tests.support.overviews import overview, queue, residency
from tests.support.registry import Node, new_version, recorded_statements
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
def engine() -> NoEngine:
    return NoEngine()


@pytest.fixture
def view(node: Node, engine: NoEngine) -> EngineViewService:
    return EngineViewService(node.database, engine, node="node-1")


@pytest.fixture
async def versions(node: Node) -> list[Version]:
    """Versions ``pricing/quotes@1``, ``pricing/quotes@2`` and ``retail/quotes@1``."""
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
    made = [await node.publish("pricing", "quotes", content) for content in ("one", "two")]
    return [*made, await node.publish("retail", "quotes", "three")]


async def known(node: Node, tenant: str) -> dict[int, KnownVersion]:
    owner = await node.tenants.get(tenant)
    async with node.database.read() as connection:
        return await known_versions(connection, owner.id)


async def share(node: Node, recipient: str) -> None:
    await SharingService(node.database, clock=node.clock).share(
        "pricing", "quotes", recipient, actor="k", must_exist=False
    )


async def test_the_platform_view_is_sorted_by_waiting_then_running(
    view: EngineViewService, engine: NoEngine, versions: list[Version], registry_url: str
) -> None:
    one, two, three = (version.key.version_id for version in versions)
    engine.shown = overview(
        residency(999, "disk"),
        residency(one, "host"),
        residency(two, "slot", running=5),
        residency(three, "loading", waiting=1, oldest_wait_s=0.5),
        tenants=(queue("pricing", running=5), queue("", running=9), queue("retail", waiting=1)),
        pinned=frozenset({two}),
    )
    with recorded_statements(registry_url) as statements:
        seen = await view.whole()
    assert sum("FROM versions" in statement for statement in statements) == 1
    assert [(shown.tenant, shown.name, shown.pinned) for shown in seen.versions] == [
        ("retail", "quotes@1", False),
        ("pricing", "quotes@2", True),
        ("pricing", "quotes@1", False),
        (None, "version 999", False),
    ]
    assert [shown.tenant for shown in seen.tenants] == ["retail", "", "pricing"]
    assert (seen.node, seen.status) == ("node-1", engine.shown.status)


async def test_the_platforms_lists_are_bounded(view: EngineViewService, engine: NoEngine) -> None:
    engine.shown = overview(
        *(residency(number, waiting=number) for number in range(1, 50)),
        tenants=tuple(queue(f"unit-{number}", waiting=number) for number in range(50)),
    )
    seen = await view.whole(limit=3)
    assert [shown.residency.version_id for shown in seen.versions] == [49, 48, 47]
    assert [shown.tenant for shown in seen.tenants] == ["unit-49", "unit-48", "unit-47"]
    assert seen.total_versions == 49


async def test_what_lies_idle_on_the_disk_fills_what_is_left(view: EngineViewService, engine: NoEngine) -> None:
    idle = [residency(number, "disk") for number in range(10, 20)]
    engine.shown = overview(*idle, residency(1, "disk", waiting=1), residency(2, "host"))
    assert [shown.residency.version_id for shown in (await view.whole(limit=4)).versions] == [1, 2, 10, 11]
    assert [shown.residency.version_id for shown in (await view.whole(limit=1)).versions] == [1]


async def test_loads_are_noted_from_the_beginning(view: EngineViewService, engine: NoEngine) -> None:
    engine.tell(EngineEvent("load", 1, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.125)))
    loads = (await view.whole()).loads
    assert loads.loads == 1
    assert loads.p50 is not None
    assert (loads.p50.fetch, loads.p50.total) == (0.5, 1.0)


async def test_tenants_see_their_own(view: EngineViewService, engine: NoEngine, versions: list[Version]) -> None:
    engine.shown = overview(*(residency(version.key.version_id, running=1) for version in versions))
    assert {version.name for version in (await view.own("pricing")).versions} == {"quotes@1", "quotes@2"}
    assert (await view.own("retail")).versions == (OwnVersion("quotes@1", "slot", 1, 0),)
    with pytest.raises(NotFound):
        await view.own("unknown")


async def test_a_shared_adapters_requests_are_seen_by_neither_side(
    view: EngineViewService, engine: NoEngine, node: Node, versions: list[Version]
) -> None:
    engine.shown = overview(*(residency(version.key.version_id, running=1, waiting=2) for version in versions))
    await share(node, "retail")
    assert {version.name: version.running for version in (await view.own("retail")).versions} == {
        "quotes@1": 1,
        "pricing/quotes@1": None,
        "pricing/quotes@2": None,
    }
    own = (await view.own("pricing")).versions
    assert own == (OwnVersion("quotes@1", "slot", None, None), OwnVersion("quotes@2", "slot", None, None))


async def test_a_share_is_seen_as_long_as_it_may_be_used(node: Node, versions: list[Version]) -> None:
    only_own = await known(node, "retail")
    await share(node, "retail")
    assert {version.name for version in (await known(node, "retail")).values()} == {
        "quotes@1",
        "pricing/quotes@1",
        "pricing/quotes@2",
    }
    await node.tenants.update("pricing", disabled=True, actor="cli")
    assert await known(node, "retail") == only_own
    await node.tenants.update("pricing", disabled=False, actor="cli")
    await SharingService(node.database, clock=node.clock).unshare("pricing", "quotes", "retail", actor="k")
    assert await known(node, "retail") == only_own


async def test_what_is_not_ready_is_its_owners_business(node: Node, versions: list[Version]) -> None:
    await share(node, "retail")
    before = await known(node, "retail")
    adapter = await node.adapters.get_adapter("pricing", "quotes")
    async with node.database.write() as connection:
        trial = await insert_version(connection, adapter.id, new_version("trial", node.clock()))
    assert await known(node, "retail") == before
    assert (await known(node, "pricing"))[trial.key.version_id] == KnownVersion("quotes@3", shared=True)


async def test_a_deleted_version_is_shown_to_no_tenant(node: Node, versions: list[Version]) -> None:
    await share(node, "retail")
    await node.deletions.delete_adapter("pricing", "quotes", force=True, actor="cli")
    assert await known(node, "pricing") == {}
    assert len(await known(node, "retail")) == 1


async def test_a_tenants_view_costs_the_same_whatever_others_have(
    view: EngineViewService, engine: NoEngine, versions: list[Version], registry_url: str
) -> None:
    costs = []
    for others in (0, 5000):
        engine.shown = overview(*(replace(residency(number), version_id=1000 + number) for number in range(others)))
        with recorded_statements(registry_url) as statements:
            await view.own("pricing")
        costs.append(list(statements))
    assert costs[0] == costs[1]
