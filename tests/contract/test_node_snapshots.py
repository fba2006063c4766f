"""Snapshots of engines in the rows of their nodes, on both databases."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from app.database.session import Database
from app.database.tables import nodes
from app.domain.node_snapshots import NodeRole
from app.engine.status import EngineState, StatusReport
from app.scheduling.pin_assignment import ABSENT_S
from app.services.operations.node_snapshot import MAX_VERSIONS, NodeReporter
from app.services.operations.node_view import NodeOverview, NodeViewService
from app.services.operations.nodes import NodeService
from tests.support.overviews import overview, queue, residency
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)

FIRST, SECOND = "1" * 32, "2" * 32
#: Bytes that one node may write every five seconds.
MAX_BYTES = 64 * 1024


def server(node: Node, identity: str, report: StatusReport, role: NodeRole = NodeRole.REPLICA) -> NodeService:
    engine = NoEngine()
    engine.shown = report
    reporter = NodeReporter(engine, role, BASE_DIGEST)
    return NodeService(node.database, identity, f"host {identity[0]}", report=reporter.report, clock=node.clock)


async def seen_from(node: Node, service: NodeService, limit: int = 100) -> dict[str, NodeOverview]:
    shown = await NodeViewService(node.database, service).nodes(limit)
    return {overview.peer.node.id: overview for overview in shown}


async def row(database: Database, identity: str) -> Any:
    async with database.read() as connection:
        return (await connection.execute(select(nodes).where(nodes.c.id == identity))).one()


async def test_any_gateway_sees_the_engines_of_all_nodes(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    version = (await node.publish("pricing", "quotes", "one")).key.version_id
    busy = overview(residency(version, running=2), residency(9_999), residency(9_998, "host"), tenants=(queue("x"),))
    replica = server(node, FIRST, busy)
    gateway = server(node, SECOND, busy, NodeRole.GATEWAY)
    for service in (replica, gateway):
        await service.register()
        await service.beat()
    node.clock.advance(7)
    shown = await seen_from(node, gateway)
    peer = shown[FIRST].peer
    assert peer.state.role is NodeRole.REPLICA
    assert peer.state.snapshot is not None
    assert (peer.state.snapshot.state, peer.state.snapshot.slots_used, peer.state.snapshot.loads) == ("ready", 2, 4)
    assert peer.snapshot_age_s == pytest.approx(7, abs=1)
    assert [(named.name, named.placed.running) for named in shown[FIRST].versions] == [
        ("pricing/quotes@1", 2),
        ("version 9999", 0),
    ]
    assert (await seen_from(node, gateway, limit=1))[FIRST].versions == shown[FIRST].versions[:1]
    assert (shown[SECOND].peer.state.role, shown[SECOND].peer.state.snapshot) == (NodeRole.GATEWAY, None)
    stored = json.dumps((await row(node.database, FIRST)).snapshot)
    assert "pricing" not in stored


async def test_a_snapshot_stays_below_its_bound(node: Node) -> None:
    many = [residency(2**31 - number, running=10**6, waiting=10**6) for number in range(MAX_VERSIONS + 500)]
    service = server(node, FIRST, overview(*many))
    await service.register()
    await service.beat()
    stored = (await row(node.database, FIRST)).snapshot
    assert len(json.dumps(stored)) < MAX_BYTES
    assert (len(stored["versions"]), stored["more_versions"]) == (MAX_VERSIONS, 500)


async def test_a_node_of_the_release_before_has_no_snapshot(node: Node) -> None:
    service = server(node, FIRST, overview())
    await service.register()
    async with node.database.write() as connection:
        at = {"started_at": node.clock(), "seen_at": node.clock()}
        await connection.execute(insert(nodes).values(id=SECOND, name="old", **at))
    old = (await seen_from(node, service))[SECOND]
    assert (old.peer.alive, old.peer.state.role, old.peer.state.snapshot, old.versions) == (True, None, None, ())


@pytest.mark.parametrize("snapshot", [{"state": "ready"}, {"unknown": 1}, []])
async def test_a_snapshot_of_another_release_is_left_out(node: Node, snapshot: Any) -> None:
    service = server(node, FIRST, overview())
    await service.register()
    await service.beat()
    async with node.database.write() as connection:
        await connection.execute(update(nodes).values(snapshot=snapshot, role="new role"))
    peer = (await seen_from(node, service))[FIRST].peer
    assert (peer.state.role, peer.state.snapshot, peer.snapshot_age_s) == (None, None, None)


@pytest.mark.parametrize(("absent_s", "kept"), [(ABSENT_S - 1, 4), (ABSENT_S + 1, None)])
async def test_a_replica_keeps_its_slots_over_a_short_absence(node: Node, absent_s: float, kept: int | None) -> None:
    service = server(node, FIRST, overview())
    await service.register()
    await service.beat()
    assert (await row(node.database, FIRST)).slots == 4
    node.clock.now += timedelta(seconds=absent_s)
    await service.register()
    assert (await row(node.database, FIRST)).slots == kept


async def test_slots_count_once_the_engine_was_ready(node: Node) -> None:
    engine = NoEngine()
    reporter = NodeReporter(engine, NodeRole.REPLICA, BASE_DIGEST)
    slots = []
    for state in (EngineState.STARTING, EngineState.READY, EngineState.RESTARTING):
        engine.state = state
        slots.append(reporter.report().slots)
    assert slots == [None, 4, 4]
