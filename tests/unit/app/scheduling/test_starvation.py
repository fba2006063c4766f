"""Bound on a version's wait for a slot, with requests of equal duration."""

import random
from dataclasses import dataclass, field
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.scheduling.admission import Admission
from app.scheduling.admission_request import Bounds
from tests.support.scheduling.engine import Engine, staged

MAX_AGE_S = 2.0


@dataclass
class Watch:
    """Compares each version's wait for a slot with its bound, which depends on the number of versions ahead.

    A wait lasts from the first request, or from the start of a drain with waiting requests, to the next slot.
    """

    engine: Engine
    slots: int
    drain_s: float
    since: dict[int, tuple[float, int]] = field(default_factory=dict)
    worst: float = 0.0
    turns: int = 0

    def look(self) -> None:
        now = self.engine.now
        states = self.engine.admission.snapshot(now).versions
        waiting = {state.version_id for state in states if state.waiting and (state.draining or not state.holds_slot)}
        for version_id in self.since.keys() - waiting:
            began, ahead = self.since.pop(version_id)
            bound = ceil((ahead + 1) / self.slots) * (MAX_AGE_S + self.drain_s)
            self.worst = max(self.worst, (now - began) / bound)
            self.turns += 1
        ahead = len(self.since)
        for version_id in waiting - self.since.keys():
            self.since[version_id] = (now, ahead)
            ahead += 1


def play(seed: int, *, slots: int, versions: int, tenants: int, load: float, service_s: float) -> Watch:
    """Send random requests for versions, some of them hot, for the duration of 30 drains."""
    chance = random.Random(seed)
    bounds = Bounds(requests=1_000_000, tenant_requests=1_000_000, seconds=1e9)
    admission = Admission(slots=slots, window=1_000_000, max_age_s=MAX_AGE_S, bounds=bounds)
    staged(admission, range(1, versions + 1))
    engine = Engine(admission, seconds=lambda request: service_s)
    watch = Watch(engine, slots, service_s)
    engine.ended = lambda request: watch.look()

    def arrive() -> None:
        version = min(chance.randrange(1, versions + 1), chance.randrange(1, versions + 1))
        engine.enter(f"tenant {version % tenants}", version, output=chance.choice([1, 10, 100]))
        watch.look()
        if engine.now < 30 * service_s:
            engine.at(engine.now + chance.expovariate(load), arrive)

    engine.at(0.0, arrive)
    engine.run()
    watch.look()
    assert admission.waiting == admission.running == 0
    return watch


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 4),
    versions=st.integers(2, 40),
    tenants=st.integers(1, 5),
    load=st.sampled_from([1.0, 5.0, 20.0]),
    service_s=st.sampled_from([0.2, 1.0, 5.0]),
)
def test_no_version_waits_beyond_the_bound(
    seed: int, slots: int, versions: int, tenants: int, load: float, service_s: float
) -> None:
    watch = play(seed, slots=slots, versions=versions, tenants=tenants, load=load, service_s=service_s)
    assert watch.worst <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("service_s", [0.5, 5.0])
def test_the_bound_holds_while_turns_are_passed_on(service_s: float) -> None:
    watch = play(7, slots=4, versions=200, tenants=9, load=50.0, service_s=service_s)
    assert watch.turns > 200
    assert watch.worst <= 1.0


def saturated(admission: Admission, *, window: int) -> Engine:
    """Saturate one hot adapter: twice as many clients as the window has places, each of which asks again at once."""
    engine = Engine(admission)
    engine.ended = lambda request: engine.enter("hot", 1) if request.tenant == "hot" and engine.now < 60 else None
    for _ in range(2 * window):
        engine.enter("hot", 1)
    return engine


def test_a_cold_version_gets_through_a_saturated_hot_one() -> None:
    engine = saturated(staged(Admission(slots=1, window=8, max_age_s=MAX_AGE_S), range(1, 3)), window=8)
    engine.at(2.5, lambda: engine.enter("cold", 2))
    engine.run(59.0)
    assert engine.waits("cold")
    assert max(engine.waits("cold")) <= MAX_AGE_S + 1.0


def test_a_hot_adapter_does_not_block_its_tenants_cold_one() -> None:
    engine = saturated(staged(Admission(slots=1, window=8, max_age_s=MAX_AGE_S), range(1, 3)), window=8)
    cold = []
    engine.at(2.5, lambda: cold.append(engine.enter("hot", 2)))
    engine.run(59.0)
    assert engine.started[cold[0].request_id] - 2.5 <= MAX_AGE_S + 1.0


def test_the_window_does_not_starve_an_overdue_version() -> None:
    """Base-model requests keep the window full; the version's tenant received as much service as the other."""
    engine = Engine(staged(Admission(slots=1, window=4, max_age_s=MAX_AGE_S), range(1, 3)))
    engine.ended = lambda request: engine.enter(request.tenant) if request.version_id is None else None
    for _ in range(8):
        engine.enter("busy")
        engine.enter("mixed")
    engine.at(10.0, lambda: engine.enter("mixed", 2))
    engine.run(30.0)
    late = [request for request in engine.order if request.version_id == 2]
    assert late
    assert engine.started[late[0].request_id] - 10.0 <= MAX_AGE_S + 2.0


def test_a_crowd_keeps_no_adapter_of_its_own_from_a_free_slot() -> None:
    """Grants may overtake waiting versions here: their bound is two rounds, and drains are short.

    The queue behind the full window must still not keep them from a free slot.
    """
    admission = staged(Admission(slots=4, window=8, max_age_s=MAX_AGE_S), range(1, 9))
    engine = Engine(admission, seconds=lambda request: 0.2)
    for number in range(8):
        engine.enter("t", 2 + number % 7)
        engine.run(engine.now + 0.5)
    for _ in range(1000):
        engine.enter("t", 1)
    lone = []
    for version in range(2, 9):
        engine.at(10.0, lambda version=version: lone.append(engine.enter("t", version)))
    engine.run(60.0)
    assert max(engine.started[request.request_id] - 10.0 for request in lone) <= 2 * (MAX_AGE_S + 0.2)
