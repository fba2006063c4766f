"""Pins of engine replicas on both databases: each replica pins its part, an absence moves it, and room is counted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.domain.adapters import Version
from app.domain.errors import Conflict
from app.domain.node_snapshots import NodeRole
from app.scheduling.pin_assignment import ABSENT_S
from app.services.common.in_flight import InFlightLookups
from app.services.operations.node_snapshot import NodeReporter
from app.services.operations.nodes import NodeService
from app.services.placement.fleet_pins import FleetPins, FleetRoom
from app.services.placement.pins import PinService
from app.services.placement.placement import PlacementService
from tests.support.overviews import overview
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)

VERSIONS = 6


class Replica:
    """A replica without an engine: placement and heartbeats."""

    def __init__(self, node: Node, number: int, *, role: NodeRole = NodeRole.REPLICA, base: str = BASE_DIGEST) -> None:
        self.engine = NoEngine()
        report = overview()
        self.engine.shown = replace(report, status=replace(report.status, slots=VERSIONS + 1))
        self.id = f"{number:032x}"
        reporter = NodeReporter(self.engine, role, base)
        self.nodes = NodeService(node.database, self.id, "host", report=reporter.report, clock=node.clock)
        monotonic: Callable[[], float] = node.clock.monotonic
        self.placement = PlacementService(
            node.database,
            self.engine,
            node.adapters,
            InFlightLookups(),
            preload=(),
            base_digest=BASE_DIGEST,
            fleet_pins=FleetPins(self.engine, self.id, BASE_DIGEST, copies=1, clock=node.clock, monotonic=monotonic),
        )

    @property
    def pinned(self) -> frozenset[int]:
        return self.engine.status().pinned

    async def join(self) -> None:
        """Start as a replica does: register, place, send a heartbeat."""
        await self.nodes.register()
        await self.placement.prepare()
        await self.nodes.beat()


@pytest.fixture
async def versions(node: Node) -> list[Version]:
    """Pinned versions."""
    await node.tenants.create("pricing", actor="cli")
    made = [await node.publish("pricing", "quotes", f"content {number}") for number in range(VERSIONS)]
    engine = NoEngine()
    engine.shown = replace(engine.shown, status=replace(engine.shown.status, slots=100))
    pins = PinService(node.database, engine, lambda: (), base_digest=BASE_DIGEST, clock=node.clock)
    for version in made:
        await pins.pin("pricing", "quotes", version.number, actor="key", admin=True)
    return made


async def pass_time(node: Node, seconds: float, *alive: Replica) -> None:
    """Let these replicas follow and send heartbeats."""
    for _ in range(round(seconds)):
        node.clock.advance(1)
        for replica in alive:
            await replica.nodes.beat()
            await replica.placement.follow()


async def test_each_pin_is_on_one_replica(node: Node, versions: list[Version]) -> None:
    every = {version.key.version_id for version in versions}
    one, two = Replica(node, 1), Replica(node, 2)
    await one.join()
    assert one.pinned == every
    await two.join()
    # The second has loaded its part before the first gives it up.
    assert two.pinned
    assert one.pinned == every
    await pass_time(node, 1, one, two)
    assert one.pinned | two.pinned == every
    assert not one.pinned & two.pinned
    assert one.pinned


async def test_a_short_absence_moves_no_pin_and_a_long_one_does(node: Node, versions: list[Version]) -> None:
    one, two = Replica(node, 1), Replica(node, 2)
    for replica in (one, two):
        await replica.join()
    await pass_time(node, 1, one, two)
    own = one.pinned
    await pass_time(node, ABSENT_S - 5, one)
    assert one.pinned == own
    await pass_time(node, 10, one)
    assert one.pinned == {version.key.version_id for version in versions}
    await two.join()
    await pass_time(node, 1, one, two)
    assert one.pinned == own


@pytest.mark.parametrize(("role", "base"), [(NodeRole.SERVER, BASE_DIGEST), (NodeRole.REPLICA, "c" * 64)])
async def test_only_replicas_of_the_base_count(node: Node, versions: list[Version], role: NodeRole, base: str) -> None:
    other = Replica(node, 1, role=role, base=base)
    await other.nodes.register()
    await other.nodes.beat()
    replica = Replica(node, 2)
    await replica.join()
    await pass_time(node, 1, replica, other)
    assert replica.pinned == {version.key.version_id for version in versions}


async def test_gateways_count_the_room_of_all_replicas(node: Node, versions: list[Version]) -> None:
    room = FleetRoom(BASE_DIGEST, copies=1, clock=node.clock)
    pins = PinService(node.database, NoEngine(), lambda: (), base_digest=BASE_DIGEST, fleet=room, clock=node.clock)
    await Replica(node, 1).join()
    await node.publish("pricing", "quotes", "one more")
    with pytest.raises(Conflict, match=r"6 versions are pinned; the limit is 6\. .* or add replicas"):
        await pins.pin("pricing", "quotes", VERSIONS + 1, actor="key", admin=True)
    await Replica(node, 2).join()
    await pins.pin("pricing", "quotes", VERSIONS + 1, actor="key", admin=True)
    # A fleet that is scaled down to zero keeps its room.
    node.clock.advance(10 * ABSENT_S)
    await pins.unpin("pricing", "quotes", VERSIONS + 1, actor="key", admin=True)
    await pins.pin("pricing", "quotes", VERSIONS + 1, actor="key", admin=True)
