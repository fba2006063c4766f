"""Pins on both databases, and an engine that reconciles with them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import select

from adapters.errors import BlobNotFound
from adapters.identity import VersionKey
from app.database.tables import audit
from app.domain.adapters import Version
from app.domain.errors import (
    AdapterLoadFailed,
    AdapterNotReady,
    Conflict,
    EngineUnavailable,
    Forbidden,
    NotFound,
    QuotaExceeded,
    WrongBase,
)
from app.domain.pins import Preload
from app.services.common.in_flight import InFlightLookups
from app.services.placement.pins import PinService
from app.services.placement.placement import PlacementService
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)

SLOTS = 3


class Engine(NoEngine):
    """Fake engine that can refuse a pin or a load."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[int, Exception] = {}
        self.tries: list[int] = []
        self.shown = replace(self.shown, status=replace(self.shown.status, slots=SLOTS))

    async def pin(self, key: VersionKey) -> None:
        self.tries.append(key.version_id)
        if refusal := self.refusals.get(key.version_id):
            raise refusal
        await super().pin(key)

    async def preload(self, key: VersionKey) -> None:
        if refusal := self.refusals.get(key.version_id):
            raise refusal
        await super().preload(key)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def service(
    node: Node, engine: Engine, preloads: Sequence[Preload] = (), *, base_digest: str = BASE_DIGEST
) -> PinService:
    return PinService(node.database, engine, lambda: preloads, base_digest=base_digest, clock=node.clock)


@pytest.fixture
def pins(node: Node, engine: Engine) -> PinService:
    return service(node, engine)


Place = Callable[..., PlacementService]


@pytest.fixture
def place(node: Node, engine: Engine) -> Place:
    def make(*preload: str) -> PlacementService:
        return PlacementService(
            node.database, engine, node.adapters, InFlightLookups(), preload=preload, base_digest=BASE_DIGEST
        )

    return make


@pytest.fixture
async def versions(node: Node) -> list[Version]:
    """Two versions of one tenant and one of another, all ready."""
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
    made = [await node.publish("pricing", "quotes", content) for content in ("one", "two")]
    return [*made, await node.publish("retail", "quotes", "three")]


async def test_a_pin_is_kept_listed_and_audited(
    node: Node, pins: PinService, versions: list[Version], engine: Engine
) -> None:
    made, created = await pins.pin("pricing", "quotes", 2, actor="key", admin=True)
    assert created
    assert (made.tenant, made.adapter, made.number, made.created_by) == ("pricing", "quotes", 2, "key")
    assert (made.key, made.created_at, made.held) == (versions[1].key, node.clock.now, False)
    assert await pins.list_pins() == [made]
    assert await pins.pin("pricing", "quotes", 2, actor="other", admin=True) == (made, False)
    await pins.unpin("pricing", "quotes", 2, actor="key", admin=True)
    assert await pins.list_pins() == []
    with pytest.raises(NotFound, match="is not pinned"):
        await pins.unpin("pricing", "quotes", 2, actor="key", admin=True)
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).where(audit.c.action.like("%pin")).order_by(audit.c.id))).all()
    assert [(row.action, row.tenant, row.subject, row.actor) for row in rows] == [
        ("version.pin", "pricing", "quotes@2", "key"),
        ("version.unpin", "pricing", "quotes@2", "key"),
    ]


@pytest.mark.parametrize("asked", [("unknown", "quotes", 1), ("pricing", "none", 1), ("pricing", "quotes", 9)])
async def test_what_there_is_not_cannot_be_pinned(
    pins: PinService, versions: list[Version], asked: tuple[str, str, int]
) -> None:
    for call in (pins.pin, pins.unpin):
        with pytest.raises(NotFound):
            await call(*asked, actor="key", admin=True)


async def test_one_slot_is_left_over_all_tenants(pins: PinService, versions: list[Version]) -> None:
    await pins.pin("pricing", "quotes", 1, actor="key", admin=True)
    await pins.pin("retail", "quotes", 1, actor="key", admin=True)
    with pytest.raises(Conflict, match="2 of 3 slots are pinned; the limit is 2"):
        await pins.pin("pricing", "quotes", 2, actor="key", admin=True)
    await pins.unpin("retail", "quotes", 1, actor="key", admin=True)
    await pins.pin("pricing", "quotes", 2, actor="key", admin=True)


async def test_two_tenants_at_once_cannot_take_the_last_slot_together(
    node: Node, other_node: Node, engine: Engine, versions: list[Version]
) -> None:
    await service(node, engine).pin("pricing", "quotes", 1, actor="key", admin=True)
    results = await asyncio.gather(
        service(node, engine).pin("pricing", "quotes", 2, actor="key", admin=True),
        service(other_node, engine).pin("retail", "quotes", 1, actor="key", admin=True),
        return_exceptions=True,
    )
    assert sorted(isinstance(result, Conflict) for result in results) == [False, True]


async def test_a_tenants_own_key_needs_a_quota(node: Node, pins: PinService, versions: list[Version]) -> None:
    for call in (pins.pin, pins.unpin):
        with pytest.raises(Forbidden, match="no quota"):
            await call("pricing", "quotes", 1, actor="key", admin=False)
    await node.tenants.update("pricing", quota={"pinned_slots": 0}, actor="cli")
    with pytest.raises(Forbidden, match="no quota"):
        await pins.pin("pricing", "quotes", 1, actor="key", admin=False)
    await node.tenants.update("pricing", quota={"pinned_slots": 1}, actor="cli")
    await pins.pin("pricing", "quotes", 1, actor="key", admin=False)
    with pytest.raises(QuotaExceeded, match=r"pinned_slots would be 2 \(limit 1\)"):
        await pins.pin("pricing", "quotes", 2, actor="key", admin=False)
    await pins.unpin("pricing", "quotes", 1, actor="key", admin=False)


async def test_only_what_this_base_can_serve_is_pinned(
    node: Node, engine: Engine, pins: PinService, versions: list[Version]
) -> None:
    with pytest.raises(WrongBase, match="validated against the base 'llama'"):
        await service(node, engine, base_digest="c" * 64).pin("pricing", "quotes", 1, actor="key", admin=True)
    await node.adapters.quarantine(versions[0].key.version_id, "broken")
    with pytest.raises(AdapterNotReady, match="quotes@1 is quarantined, but must be ready"):
        await pins.pin("pricing", "quotes", 1, actor="key", admin=True)


async def test_the_engine_follows(
    pins: PinService, place: Place, engine: Engine, other_node: Node, versions: list[Version]
) -> None:
    placement = place()
    await pins.pin("pricing", "quotes", 1, actor="key", admin=True)
    await service(other_node, engine).pin("retail", "quotes", 1, actor="key", admin=True)
    await placement.follow()
    assert engine.pinned == {versions[0].key.version_id, versions[2].key.version_id}
    assert [pin.held for pin in await pins.list_pins()] == [True, True]
    await service(other_node, engine).unpin("pricing", "quotes", 1, actor="key", admin=True)
    await placement.follow()
    assert engine.pinned == {versions[2].key.version_id}


async def test_a_version_that_is_deleted_or_quarantined_is_unpinned(
    node: Node, pins: PinService, place: Place, engine: Engine, versions: list[Version]
) -> None:
    placement = place()
    await pins.pin("pricing", "quotes", 1, actor="key", admin=True)
    await pins.pin("retail", "quotes", 1, actor="key", admin=True)
    await placement.follow()
    await node.adapters.quarantine(versions[0].key.version_id, "broken")
    await node.deletions.delete_adapter("retail", "quotes", force=True, actor="key")
    await placement.follow()
    assert engine.pinned == set()
    assert await pins.list_pins() == []


async def test_a_broken_pin_is_quarantined_and_others_follow(
    node: Node, pins: PinService, place: Place, engine: Engine, versions: list[Version]
) -> None:
    for tenant in ("pricing", "retail"):
        await pins.pin(tenant, "quotes", 1, actor="key", admin=True)
    broken = versions[0].key.version_id
    engine.refusals[broken] = AdapterLoadFailed("the engine could not load this version", version_id=broken)
    placement = place()
    await placement.follow()
    await placement.follow()
    assert engine.tries.count(broken) == 1
    assert engine.pinned == {versions[2].key.version_id}
    assert (await node.adapters.get_version("pricing", "quotes", 1)).state == "quarantined"


@pytest.mark.parametrize("refusal", [EngineUnavailable("it is starting"), BlobNotFound("gone"), Conflict("no slot")])
async def test_an_unavailable_pin_is_retried_and_reported_once(
    pins: PinService,
    place: Place,
    engine: Engine,
    versions: list[Version],
    refusal: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    version_id = versions[0].key.version_id
    await pins.pin("pricing", "quotes", 1, actor="key", admin=True)
    engine.refusals[version_id] = refusal
    placement = place()
    for _ in range(3):
        await placement.follow()
    assert engine.tries == [version_id] * 3
    assert caplog.text.count("pricing/quotes@1") == 1
    engine.refusals.clear()
    await placement.follow()
    assert engine.pinned == {version_id}


async def test_the_preload_list_is_loaded_and_its_slips_are_shown(
    node: Node, pins: PinService, place: Place, engine: Engine, versions: list[Version]
) -> None:
    await pins.pin("retail", "quotes", 1, actor="key", admin=True)
    wanted = ("pricing/quotes", "pricing/quotes@1", "pricing/none", "unknown/quotes", "pricing", "pricing/quotes@0")
    placement = place(*wanted, "retail/quotes")
    broken = versions[2].key.version_id
    engine.refusals[broken] = AdapterLoadFailed("the engine could not load this version", version_id=broken)
    await placement.prepare()
    assert engine.preloaded == [versions[1].key.version_id, versions[0].key.version_id]
    report = await service(node, engine, placement.preloads).placement()
    assert (report.slots, report.pins) == (SLOTS, await pins.list_pins())
    shown = {preload.name: preload for preload in report.preloads}
    assert list(shown) == [*wanted, "retail/quotes"]
    assert (shown["pricing/quotes"].versions, shown["pricing/quotes"].problem) == (("pricing/quotes@2",), None)
    assert shown["unknown/quotes"].problem == "There is no tenant 'unknown'."
    assert shown["pricing/none"].problem == "No version with this name is ready and can be served here."
    for name in ("pricing", "pricing/quotes@0"):
        assert (shown[name].problem or "").startswith("The name is invalid.")
    # The pin of this version was tried first.
    assert (await node.adapters.get_version("retail", "quotes", 1)).state == "quarantined"
    assert shown["retail/quotes"].versions == ()


async def test_an_unpinned_version_is_not_loaded_any_more(
    node: Node, pins: PinService, place: Place, engine: Engine, versions: list[Version]
) -> None:
    """The version is unpinned or deleted between the query of the pins and the load."""
    await pins.pin("pricing", "quotes", 1, actor="key", admin=True)
    await pins.pin("retail", "quotes", 1, actor="key", admin=True)
    first, second = versions[0].key.version_id, versions[2].key.version_id

    async def unpin_the_second(key: VersionKey) -> None:
        await pins.unpin("retail", "quotes", 1, actor="key", admin=True)
        await Engine.pin(engine, key)

    engine.pin = unpin_the_second  # type: ignore[method-assign]
    await place().follow()
    assert (engine.tries, engine.pinned) == ([first], {first})
    assert second not in engine.loaded
