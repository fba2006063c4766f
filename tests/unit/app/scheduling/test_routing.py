"""The rule of each route: replica sets, waits, deadlines, pins, stale and hostile reports."""

from dataclasses import replace
from typing import Any

import pytest

from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import NoReplica, Route, Router

VERSION = "f" * 64
NODES = ("a", "b", "c", "d")


def fleet(*reports: ReplicaReport, now: float = 0.0, **options: float) -> Router:
    router = Router(**options)
    for report in reports or [ReplicaReport(node_id, 16) for node_id in NODES]:
        router.report(report, now)
    return router


def order(version: str = VERSION) -> list[str]:
    """Ranking of the version in a fleet of equal replicas."""
    router = fleet()
    router.pin({version: len(NODES)})
    return list(router.replica_set(version))


def sent(router: Router, count: int, version: str | None = VERSION, now: float = 0.0) -> list[Route]:
    return [router.route(version, now=now) for _ in range(count)]


def test_requests_of_a_version_meet_in_one_replica() -> None:
    router = fleet()
    for _ in range(50):
        route = router.route(VERSION, now=0.0)
        assert route.node_id == order()[0]
        router.finish(route)


def test_a_full_replica_passes_requests_to_the_next() -> None:
    router = fleet()
    nodes = [route.node_id for route in sent(router, 4)]
    first, second = order()[:2]
    assert nodes == [first, first, second, second]


def test_a_set_grows_at_once_and_shrinks_after_the_cooldown() -> None:
    router = fleet(cooldown_s=30.0, stale_s=1e9)
    routes = sent(router, 40)
    grown = len(router.replica_set(VERSION))
    assert grown > 1
    for route in routes:
        router.finish(route)
    router.finish(router.route(VERSION, now=29.9))
    assert len(router.replica_set(VERSION)) == grown
    router.finish(router.route(VERSION, now=30.1))
    assert len(router.replica_set(VERSION)) == 1


def test_a_set_without_requests_shrinks_with_a_report() -> None:
    router = fleet(cooldown_s=30.0)
    for route in sent(router, 40):
        router.finish(route)
    router.report(ReplicaReport("a", 16), 29.0)
    assert len(router.replica_set(VERSION)) > 1
    router.report(ReplicaReport("a", 16), 31.0)
    assert len(router.replica_set(VERSION)) == 1


def test_within_a_set_the_least_expected_wait_wins() -> None:
    busy, idle = order()[:2]
    reports = {node_id: ReplicaReport(node_id, 16, tokens_per_s=100.0, resident={VERSION}) for node_id in NODES}
    reports[busy] = replace(reports[busy], queued_tokens=500.0)
    router = fleet(*reports.values())
    router.pin({VERSION: 2})
    route = router.route(VERSION, now=0.0)
    assert (route.node_id, route.wait_s) == (idle, 0.0)


@pytest.mark.parametrize(
    ("tiers", "wait_s"),
    [({"resident": {VERSION}}, 0.0), ({"staged": {VERSION}}, 0.5), ({"on_disk": {VERSION}}, 2.5), ({}, 12.5)],
    ids=["in a slot", "staged", "on the disk", "nowhere"],
)
def test_a_cold_adapter_costs_its_load(tiers: dict[str, Any], wait_s: float) -> None:
    report = ReplicaReport("a", 16, copy_s=0.5, stage_s=2.0, fetch_s=10.0, **tiers)
    assert fleet(report).route(VERSION, now=0.0).wait_s == wait_s


def test_a_replica_with_the_adapter_in_a_slot_is_a_member() -> None:
    """So a replica that joins takes a version over when the old one has evicted it."""
    last = order()[-1]
    reports = [ReplicaReport(node_id, 16, resident={VERSION} if node_id == last else set()) for node_id in NODES]
    assert fleet(*reports).route(VERSION, now=0.0).node_id == last
    assert fleet(*reports).route(VERSION, now=4.0).node_id == order()[0]


def test_requests_since_the_report_count_as_queued() -> None:
    router = fleet(ReplicaReport("a", 16, tokens_per_s=100.0, resident={VERSION}))
    router.route(VERSION, now=0.0, tokens=300.0)
    assert router.route(VERSION, now=0.0).wait_s == 3.0
    router.report(ReplicaReport("a", 16, tokens_per_s=100.0, resident={VERSION}), 1.0)
    assert router.route(VERSION, now=1.0).wait_s == 0.0


def test_a_deadline_passes_over_replicas_that_are_late() -> None:
    first, second, third = order()[:3]
    queued = {first: 900.0, second: 500.0, third: 100.0}
    reports = [
        ReplicaReport(node_id, 16, tokens_per_s=100.0, queued_tokens=queued.get(node_id, 900.0), staged={VERSION})
        for node_id in NODES
    ]
    assert fleet(*reports).route(VERSION, now=0.0, deadline=10.0).node_id == first
    assert fleet(*reports).route(VERSION, now=0.0, deadline=6.0).node_id == second
    assert fleet(*reports).route(VERSION, now=0.0, deadline=2.0).node_id == third
    # None can answer in time: the queue of the least late one refuses the request.
    assert fleet(*reports).route(VERSION, now=0.0, deadline=0.5).node_id == third
    assert fleet(*reports).route(None, now=0.0, deadline=2.0).node_id == third


def test_pins_set_a_minimum_of_replicas() -> None:
    router = fleet()
    router.pin({VERSION: 3})
    assert router.replica_set(VERSION) == tuple(order()[:3])
    # Without the pin, one replica would get both.
    assert [route.node_id for route in sent(router, 2)] == order()[:2]
    router.pin({})
    assert router.replica_set(VERSION) == tuple(order()[:1])


@pytest.mark.parametrize("now", [3.5, -3.5], ids=["old reports", "a clock that goes back"])
def test_without_recent_reports_the_hash_decides(now: float) -> None:
    first, second = order()[:2]
    reports = {node_id: ReplicaReport(node_id, 16, tokens_per_s=1.0) for node_id in NODES}
    reports[first] = replace(reports[first], queued_tokens=1e6)
    reports[second] = replace(reports[second], resident={VERSION})
    router = fleet(*reports.values())
    router.pin({VERSION: 2})
    assert router.route(VERSION, now=0.0).node_id == second
    route = router.route(VERSION, now=now)
    assert (route.node_id, route.wait_s) == (first, None)
    assert router.route(VERSION, now=now, deadline=now).node_id == first


def test_replicas_that_are_not_ready_get_nothing() -> None:
    first, second = order()[:2]
    router = fleet()
    router.report(ReplicaReport(first, 16, ready=False), 0.0)
    assert router.route(VERSION, now=0.0).node_id == second
    router.report(ReplicaReport(first, 16), 1.0)
    assert router.route(VERSION, now=1.0).node_id == first


def test_a_retry_avoids_replicas_that_failed() -> None:
    router, nodes = fleet(), order()
    for count, node_id in enumerate(nodes):
        assert router.route(VERSION, now=0.0, avoid=nodes[:count]).node_id == node_id
    with pytest.raises(NoReplica, match="has not failed this request"):
        router.route(VERSION, now=0.0, avoid=nodes)


def test_replicas_without_slots_serve_the_base_model_only() -> None:
    router = fleet(ReplicaReport("base", 0), ReplicaReport("slots", 1, in_flight=5))
    assert {route.node_id for route in sent(router, 20)} == {"slots"}
    assert router.route(None, now=0.0).node_id == "base"


def test_the_base_model_goes_to_the_least_loaded() -> None:
    loads = {"a": 3, "b": 1, "c": 2, "d": 4}
    router = fleet(*(ReplicaReport(node_id, 16, in_flight=load) for node_id, load in loads.items()))
    assert [route.node_id for route in sent(router, 3, None)] == ["b", "b", "c"]


def test_requests_of_other_gateways_count() -> None:
    first, second = order()[:2]
    router = fleet()
    router.report(ReplicaReport(first, 16, in_flight=10), 0.0)
    assert router.load(first) == 10
    assert router.route(VERSION, now=0.0).node_id == second


def test_own_requests_in_a_report_count_once() -> None:
    router = fleet(ReplicaReport("a", 16))
    sent(router, 5)
    router.report(ReplicaReport("a", 16, in_flight=7), 1.0)
    assert router.load("a") == 7


def test_a_set_grows_with_the_load_of_all_gateways() -> None:
    """This gateway has a tenth of all requests, all of them for one version."""
    alone, among = fleet(), fleet(*(ReplicaReport(node_id, 16, in_flight=20) for node_id in NODES))
    sent(alone, 8)
    sent(among, 8)
    assert len(among.replica_set(VERSION)) > len(alone.replica_set(VERSION))


def test_a_replica_that_returns_has_the_load_of_its_report() -> None:
    router = fleet(ReplicaReport("a", 16), ReplicaReport("b", 16))
    routes = sent(router, 6, None)
    router.remove("a")
    router.remove("unknown")
    router.report(ReplicaReport("a", 16, in_flight=0), 5.0)
    for route in routes:
        router.finish(route)
    assert (router.load("a"), router.load("b")) == (0, 0)


def test_without_a_replica_the_error_says_why() -> None:
    with pytest.raises(NoReplica, match="No engine replica is ready"):
        Router().route(VERSION, now=0.0)
    with pytest.raises(NoReplica, match="No engine replica is ready"):
        fleet(ReplicaReport("a", 16, ready=False)).route(None, now=0.0)
    with pytest.raises(NoReplica, match="has LoRA slots"):
        fleet(ReplicaReport("a", 0)).route(VERSION, now=0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_id": ""},
        {"slots": -1},
        {"in_flight": -1},
        {"queued_tokens": -1.0},
        {"queued_tokens": float("nan")},
        {"tokens_per_s": float("nan")},
        {"tokens_per_s": -1.0},
        {"copy_s": float("inf")},
        {"fetch_s": -0.1},
    ],
    ids=str,
)
def test_a_report_with_a_wrong_number_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match="node id" if name == "node_id" else name):
        replace(ReplicaReport("a", 16), **wrong)


@pytest.mark.parametrize("tokens", [-1.0, float("nan"), float("inf")])
def test_a_wrong_number_of_tokens_is_refused(tokens: float) -> None:
    router = fleet()
    with pytest.raises(ValueError, match="tokens"):
        router.route(VERSION, now=0.0, tokens=tokens)
    assert all(router.load(node_id) == 0 for node_id in NODES)
