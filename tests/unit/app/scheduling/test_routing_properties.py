"""Properties of the routing rule that hold for any reports and any order of requests."""

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import LOAD_FACTOR, LOAD_SLACK, NoReplica, Route, Router

VERSIONS = [f"{number:064x}" for number in range(6)]
NODES = [f"replica-{number}" for number in range(5)]

versions = st.sampled_from(VERSIONS)
numbers = st.floats(0, 1e6)
held = st.frozensets(versions)
reports = st.builds(
    ReplicaReport,
    node_id=st.sampled_from(NODES),
    slots=st.integers(0, 4),
    ready=st.booleans(),
    in_flight=st.integers(0, 30),
    queued_tokens=numbers,
    tokens_per_s=st.none() | numbers,
    resident=held,
    staged=held,
    on_disk=held,
    copy_s=numbers,
    stage_s=numbers,
    fetch_s=numbers,
)
fleets = st.lists(reports, min_size=1, unique_by=lambda report: report.node_id)
requests = st.lists(st.tuples(st.none() | versions, numbers, st.none() | numbers, numbers), max_size=30)
#: Anything that a broken replica might send.
odd = st.sampled_from([math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.0, 1e300, 5])


def routed(fleet: list[ReplicaReport], sent: list) -> list[Route | None]:
    router = Router()
    for report in fleet:
        router.report(report, 0.0)
    return [attempt(router, *request) for request in sent]


def attempt(router: Router, version: str | None, tokens: float, deadline: float | None, now: float) -> Route | None:
    try:
        return router.route(version, now=now, tokens=tokens, deadline=deadline)
    except NoReplica:
        return None


@given(fleets, requests, st.randoms())
def test_the_order_of_reports_changes_nothing(fleet, sent, random) -> None:
    first = routed(fleet, sent)
    random.shuffle(fleet)
    assert routed(fleet, sent) == first
    assert routed(fleet, sent) == first


@given(fleets, requests)
def test_a_leaving_replica_moves_only_its_versions(fleet, sent) -> None:
    """Each version's first requests are compared, so that no load decides."""
    fleet = [ReplicaReport(report.node_id, max(1, report.slots)) for report in fleet]
    gone = fleet[0].node_id
    before = {version: routed(fleet, [(version, 0.0, None, 0.0)])[0].node_id for version in VERSIONS}
    for version, node_id in before.items():
        if node_id != gone:
            assert routed(fleet[1:], [(version, 0.0, None, 0.0)])[0].node_id == node_id


@given(
    st.lists(st.tuples(st.sampled_from(NODES), odd, odd, odd, odd, odd, odd), max_size=8),
    st.lists(st.tuples(st.none() | versions, odd, st.none() | odd, odd), max_size=20),
)
def test_hostile_state_gives_a_valid_decision_or_an_error(states, sent) -> None:
    router, known = Router(), set()
    for node_id, slots, in_flight, queued, rate, cost, now in states:
        try:
            report = ReplicaReport(
                node_id, slots, in_flight=in_flight, queued_tokens=queued, tokens_per_s=rate, copy_s=cost
            )
        except ValueError:
            continue
        router.report(report, now)
        known.add(node_id)
    for version, tokens, deadline, now in sent:
        try:
            route = router.route(version, now=now, tokens=tokens, deadline=deadline)
        except (NoReplica, ValueError):
            continue
        assert route.node_id in known


class Gateway(RuleBasedStateMachine):
    """One gateway whose clock may go back, and replicas that come, go and report anything."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.now = Router(), 0.0
        self.known: dict[str, ReplicaReport] = {}
        self.routes: list[Route] = []

    @rule(report=reports)
    def report(self, report: ReplicaReport) -> None:
        self.router.report(report, self.now)
        self.known[report.node_id] = report
        assert self.router.load(report.node_id) >= report.in_flight

    @rule(node_id=st.sampled_from(NODES))
    def leave(self, node_id: str) -> None:
        self.router.remove(node_id)
        self.known.pop(node_id, None)

    @rule(seconds=st.floats(-10, 40))
    def passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(pins=st.dictionaries(versions, st.integers(1, 9), max_size=2))
    def pin(self, pins: dict[str, int]) -> None:
        self.router.pin(pins)

    @rule(version=st.none() | versions, tokens=numbers, wait_s=st.none() | st.floats(0, 100))
    def route(self, version: str | None, tokens: float, wait_s: float | None) -> None:
        able = [node for node, known in self.known.items() if known.ready and (version is None or known.slots)]
        deadline = None if wait_s is None else self.now + wait_s
        route = attempt(self.router, version, tokens, deadline, self.now)
        assert (route is None) == (not able)
        if route is None:
            return
        self.routes.append(route)
        assert route.node_id in able
        loads = [self.router.load(node_id) for node_id in able]
        assert self.router.load(route.node_id) <= LOAD_FACTOR * sum(loads) / len(loads) + LOAD_SLACK
        if version is None and wait_s is None:
            assert self.router.load(route.node_id) - 1 == min(*loads, self.router.load(route.node_id) - 1)

    @precondition(lambda self: self.routes)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.router.finish(self.routes.pop(data.draw(st.integers(0, len(self.routes) - 1))))

    @invariant()
    def loads_are_not_negative(self) -> None:
        assert all(self.router.load(node_id) >= 0 for node_id in NODES)

    @invariant()
    def sets_have_different_replicas(self) -> None:
        for version in VERSIONS:
            members = self.router.replica_set(version)
            assert max(Counter(members).values(), default=1) == 1
            assert set(members) <= self.known.keys()


TestGateway = Gateway.TestCase
TestGateway.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(1, 12), st.lists(st.integers(0, 60), min_size=1, max_size=200))
def test_equal_requests_at_once_stay_within_the_bound(count, picks) -> None:
    router = Router()
    for number in range(count):
        router.report(ReplicaReport(f"replica-{number}", 16), 0.0)
    for sent, pick in enumerate(picks, start=1):
        router.route(f"{pick:064x}", now=0.0)
        loads = [router.load(f"replica-{number}") for number in range(count)]
        assert sum(loads) == sent
        assert max(loads) <= LOAD_FACTOR * sent / count + LOAD_SLACK
