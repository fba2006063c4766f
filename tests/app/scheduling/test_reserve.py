"""Places that are kept free: for whom, how many, and when there are none."""

import random
from functools import partial

from app.scheduling.admission import Admission
from app.scheduling.reserve import LATE_S, MEMORY_S, most_kept
from app.scheduling.ticket import Bounds
from tests.app.scheduling.engine import Engine

WINDOW = 16
KEPT = most_kept(WINDOW)
BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def flooded() -> Engine:
    """One tenant has had a thousand requests waiting for a while, and fills the window."""
    admission = Admission(slots=1, window=WINDOW, bounds=BOUNDS)
    engine = Engine(admission)
    for _ in range(1000):
        engine.enter("flood")
    engine.run(10.0)
    return engine


def in_flight(engine: Engine, tenant: str) -> int:
    states = engine.admission.snapshot(engine.now).tenants
    return next((state.running for state in states if state.tenant == tenant), 0)


def test_whoever_is_alone_has_the_whole_window() -> None:
    assert in_flight(flooded(), "flood") == WINDOW


def test_who_comes_now_and_then_waits_once() -> None:
    """The first one finds the window full; what it took is kept free for the next."""
    engine = flooded()
    sent = []
    for _ in range(10):
        sent.append(engine.enter("modest").request_id)
        engine.run(engine.now + 2.5)
    waits = [engine.started[name] - engine.entered[name] for name in sent]
    assert waits[0] > 0
    assert waits[1:] == [0.0] * 9
    assert in_flight(engine, "flood") == WINDOW - 1


def test_no_more_is_kept_free_than_a_part_of_the_window() -> None:
    engine = flooded()
    for _ in range(WINDOW):
        engine.enter("modest")
    engine.run(engine.now + 4.0)
    assert in_flight(engine, "modest") == 0
    assert in_flight(engine, "flood") == WINDOW - KEPT


def test_what_was_taken_long_ago_is_forgotten() -> None:
    engine = flooded()
    engine.enter("modest")
    engine.run(engine.now + 3.0)
    assert in_flight(engine, "flood") == WINDOW - 1
    engine.run(engine.now + 2 * MEMORY_S)
    assert in_flight(engine, "flood") == WINDOW


def test_where_all_queue_nothing_is_kept_free() -> None:
    engine = flooded()
    for number in range(3000):
        engine.enter(f"tenant {number % 3}")
    engine.run(engine.now + 3 * MEMORY_S + LATE_S)
    tenants = ["flood", *(f"tenant {number}" for number in range(3))]
    assert sum(in_flight(engine, tenant) for tenant in tenants) == WINDOW


def test_a_weight_that_rounding_swallows_does_no_harm() -> None:
    engine = Engine(Admission(slots=1, window=WINDOW, bounds=BOUNDS))
    for tenant, weight in (("light", 1e-12), ("heavy", 1e12)):
        for _ in range(3 * WINDOW):
            engine.enter(tenant, weight=weight)
    engine.run(3.5)
    engine.enter("heavy", weight=1e12)
    engine.run()
    assert len(engine.order) == 6 * WINDOW + 1


def test_chance_makes_few_of_the_others_wait() -> None:
    """Seven tenants with a share each of the window, who come at random, beside one that fills all they leave."""
    chance = random.Random(7)
    engine = Engine(Admission(slots=1, window=32, bounds=BOUNDS), seconds=lambda _: chance.uniform(0.1, 0.7))
    for _ in range(10_000):
        engine.enter("flood")
    for tenant in range(7):
        at = 10.0
        while (at := at + chance.expovariate(6.0)) < 100.0:
            engine.at(at, partial(engine.enter, f"tenant {tenant}"))
    engine.run(100.0)
    waits = sorted(wait for tenant in range(7) for wait in engine.waits(f"tenant {tenant}"))
    assert waits[len(waits) * 95 // 100] == 0.0
    assert waits[len(waits) * 98 // 100] < 0.02
