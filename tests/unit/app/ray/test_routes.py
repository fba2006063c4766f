"""Routes of a gateway: reports, pins, stale state, and the end of each route."""

import pytest

from app.ray.routes import RouteCounts, Routes
from app.ray.transport import Target
from app.scheduling.rendezvous import ranking
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import STALE_S, NoReplica

NODES = ("a", "b", "c")
VERSION = "f" * 64


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def routes_of(clock: Clock, *reports: ReplicaReport, pin_copies: int = 1) -> Routes:
    routes = Routes(pin_copies=pin_copies, monotonic=clock)
    for report in reports or [ReplicaReport(node, 4) for node in NODES]:
        routes.report(report)
    return routes


def first(version: str) -> str:
    return ranking(version, tuple((node, 4) for node in NODES))[0]


def test_before_the_first_report_any_replica_is_the_target() -> None:
    attempt = Routes().begin(VERSION)
    assert attempt.target == Target(None, VERSION)
    attempt.finish()


def test_requests_of_a_version_meet_in_one_replica() -> None:
    routes = routes_of(Clock())
    assert {routes.begin(VERSION).target for _ in range(2)} == {Target(first(VERSION), VERSION)}


def test_a_route_ends_once() -> None:
    routes = routes_of(Clock())
    with routes.begin(VERSION) as attempt, routes.begin(VERSION):
        assert routes.load(first(VERSION)) == 2
        attempt.finish()
        attempt.finish()
        assert routes.load(first(VERSION)) == 1
    assert routes.load(first(VERSION)) == 0


def test_a_request_counts_at_the_node_that_has_it() -> None:
    routes = routes_of(Clock())
    other = next(node for node in NODES if node != first(VERSION))
    with routes.begin(VERSION) as attempt:
        attempt.arrived(first(VERSION))
        assert routes.load(first(VERSION)) == 1
        attempt.arrived(other)
        assert attempt.target == Target(other, VERSION)
        assert (routes.load(first(VERSION)), routes.load(other)) == (0, 1)
        attempt.arrived("unknown")
        assert routes.load(other) == 0
    assert [routes.load(node) for node in NODES] == [0, 0, 0]


def test_requests_retries_and_losses_are_counted() -> None:
    routes = routes_of(Clock())
    with routes.begin(VERSION) as attempt:
        attempt.arrived(first(VERSION))
    lost = routes.begin(VERSION)
    lost.lost()
    with routes.begin(VERSION, avoid={first(VERSION)}) as retry:
        other = str(retry.target.node_id)
        retry.arrived(other)
    routes.begin(VERSION).finish()
    assert routes.counts_of(first(VERSION)) == RouteCounts(requests=2, lost=1)
    assert routes.counts_of(other) == RouteCounts(requests=1, retries=1)
    # Counters never go back while a replica is away.
    routes.keep([])
    assert routes.counts_of(other).requests == 1
    # Requests at unknown nodes make no series.
    with routes.begin(None) as attempt:
        attempt.arrived("unknown")
    assert routes.counts_of("unknown") == routes.counts_of(None) == RouteCounts()
    for number in range(1_000):
        routes.report(ReplicaReport(f"{number}", 4))
    assert routes.counts_of(other) == RouteCounts()


def test_the_base_model_goes_to_the_least_loaded_replica() -> None:
    loads = {"a": 3, "b": 1, "c": 2}
    routes = routes_of(Clock(), *(ReplicaReport(node, 4, in_flight=load) for node, load in loads.items()))
    assert routes.begin(None).target == Target("b", None)


def test_with_stale_reports_the_hash_decides() -> None:
    clock = Clock()
    busy = first(VERSION)
    reports = [ReplicaReport(node, 4, queued_tokens=1000.0 * (node == busy), tokens_per_s=1.0) for node in NODES]
    routes = routes_of(clock, *reports, pin_copies=3)
    routes.pin([VERSION])
    with routes.begin(VERSION) as attempt:
        assert attempt.target.node_id != busy
    clock.now += STALE_S + 1
    with routes.begin(VERSION) as attempt:
        assert attempt.target.node_id == busy


def test_a_pin_spreads_a_version_over_its_copies() -> None:
    routes = routes_of(Clock(), pin_copies=3)
    routes.pin([VERSION])
    assert {routes.begin(VERSION).target.node_id for _ in NODES} == set(NODES)
    routes = routes_of(Clock(), pin_copies=3)
    routes.pin([VERSION])
    routes.pin([])
    assert {routes.begin(VERSION).target.node_id for _ in NODES} == {first(VERSION)}


def test_a_replica_that_left_or_failed_gets_no_request() -> None:
    routes = routes_of(Clock())
    left = first(VERSION)
    assert routes.begin(VERSION, avoid={left}).target.node_id not in {None, left}
    routes.keep([node for node in NODES if node != left])
    assert routes.begin(VERSION).target.node_id not in {None, left}
    # If all have failed the request, one of them may have come back.
    assert routes.begin(VERSION, avoid=NODES).target.node_id in NODES
    routes.keep([])
    assert routes.begin(VERSION).target == Target(None, VERSION)


def test_a_lost_replica_comes_back_with_its_next_report() -> None:
    lost: list[str] = []
    routes = Routes(on_lost=lost.append)
    for node in NODES:
        routes.report(ReplicaReport(node, 4))
    routes.lose(first(VERSION))
    routes.lose(first(VERSION))
    routes.lose(None)
    assert lost == [first(VERSION)]
    assert routes.begin(VERSION).target.node_id != first(VERSION)
    routes.report(ReplicaReport(first(VERSION), 4))
    assert routes.begin(VERSION).target.node_id == first(VERSION)


def test_replicas_that_are_not_ready_get_no_request() -> None:
    routes = routes_of(Clock(), ReplicaReport("a", 4, ready=False))
    with pytest.raises(NoReplica):
        routes.begin(VERSION, avoid={"a"})
