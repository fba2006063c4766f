"""Admission to a full window by preemption: its order, its limits, and when it is suspended."""

import random
from functools import partial

import pytest

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds
from tests.support.scheduling.engine import Engine, staged

WINDOW = 16
BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def flooded() -> Engine:
    """Build an engine on which one tenant with an old backlog fills the window."""
    engine = Engine(staged(Admission(slots=1, window=WINDOW, bounds=BOUNDS), range(1, 9)))
    for _ in range(1000):
        engine.enter("flood")
    engine.run(10.0)
    return engine


def in_flight(engine: Engine, tenant: str) -> int:
    states = engine.admission.snapshot(engine.now).tenants
    return next((state.running for state in states if state.tenant == tenant), 0)


def waits(engine: Engine, sent: list[str]) -> list[float]:
    return [engine.started[name] - engine.entered[name] for name in sent]


def test_whoever_is_alone_has_the_whole_window() -> None:
    assert in_flight(flooded(), "flood") == WINDOW


def test_an_occasional_tenant_never_waits_or_takes() -> None:
    engine, sent = flooded(), []
    for _ in range(10):
        sent.append(engine.enter("modest").request_id)
        assert (in_flight(engine, "modest"), in_flight(engine, "flood")) == (1, WINDOW)
        flood = [request.request_id for request in engine.order[-WINDOW - 1 :] if request.tenant == "flood"]
        assert engine.admission.start_tag(sent[-1]) < min(map(engine.admission.start_tag, flood))
        engine.run(engine.now + 2.5)
    assert waits(engine, sent) == [0.0] * 10


def test_who_cannot_be_set_aside_is_waited_for() -> None:
    engine = Engine(Admission(slots=1, window=WINDOW, aside=0, bounds=BOUNDS))
    for _ in range(1000):
        engine.enter("flood")
    engine.run(10.0)
    sent = [engine.enter("modest").request_id for _ in range(3)]
    assert (in_flight(engine, "modest"), in_flight(engine, "flood")) == (0, WINDOW)
    engine.run(engine.now + 2.0)
    assert all(0 < wait < 2.0 for wait in waits(engine, sent))


def test_a_burst_finds_room_as_far_as_its_credit_goes() -> None:
    """The flood is served 16 requests a second. A newcomer may burst by one to two seconds of that service."""
    engine = flooded()
    sent = [engine.enter("burst").request_id for _ in range(5 * WINDOW)]
    assert WINDOW // 2 <= in_flight(engine, "burst") <= WINDOW
    assert in_flight(engine, "flood") == WINDOW
    engine.run(engine.now + 10.0)
    # After that both get equal shares.
    assert all(name in engine.started for name in sent)
    assert waits(engine, sent)[-1] >= 3.0


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_only_how_weights_relate_matters(scale: float) -> None:
    engine = Engine(Admission(slots=1, window=WINDOW, bounds=BOUNDS))
    for _ in range(1000):
        engine.enter("flood", weight=scale)
    engine.run(10.0)
    for _ in range(3):
        engine.enter("modest", weight=scale)
        engine.enter("heavy", weight=4 * scale)
    assert [in_flight(engine, name) for name in ("modest", "heavy", "flood")] == [3, 3, WINDOW]


def test_the_first_streams_of_a_flood_are_preempted_too() -> None:
    """Only their requested output length is known."""
    engine = Engine(Admission(slots=1, window=WINDOW, bounds=BOUNDS))
    for _ in range(WINDOW):
        engine.enter("flood", output=1000)
    for _ in range(3):
        engine.enter("modest")
    assert (in_flight(engine, "modest"), in_flight(engine, "flood")) == (3, WINDOW)


def test_no_more_are_in_than_twice_the_window() -> None:
    engine = flooded()
    for tenant in range(10 * WINDOW):
        engine.enter(f"tenant {tenant}")
    in_now = sum(in_flight(engine, f"tenant {tenant}") for tenant in range(10 * WINDOW))
    assert (in_now, in_flight(engine, "flood")) == (WINDOW, WINDOW)


def test_where_all_queue_nobody_is_in_beyond_the_window() -> None:
    engine = flooded()
    for number in range(3000):
        engine.enter(f"tenant {number % 3}")
    engine.run(engine.now + 15.0)
    tenants = ["flood", *(f"tenant {number}" for number in range(3))]
    assert sum(in_flight(engine, tenant) for tenant in tenants) == WINDOW


def test_without_a_free_slot_only_firsts_pass_the_window() -> None:
    """A preempted request would keep the slot of its version."""
    engine = flooded()
    engine.seconds = lambda request: 100.0 if request.tenant == "holder" else 1.0
    engine.enter("holder", 1)
    engine.run(12.5)
    assert in_flight(engine, "flood") + in_flight(engine, "holder") == WINDOW
    engine.enter("modest")
    assert in_flight(engine, "modest") == 1
    engine.enter("cold", 2)
    engine.enter("other")
    engine.enter("other")
    assert in_flight(engine, "other") == 1


def longest_in_flight(tenants: int, *, until: float) -> float:
    """Return the longest time in flight, in seconds, of a flood's 1 s requests.

    The other tenants send one request a second each. A step takes 10 ms and runs the sixteen sequences with the
    smallest tags.
    """
    admission = Admission(slots=1, window=WINDOW, bounds=BOUNDS)
    left, began, longest = dict[str, float](), dict[str, float](), 0.0
    for step in range(int(100 * until)):
        now, sent = step / 100, [f"flood {step}"] * (step % 5 == 0)
        if step > 1000 and step % (100 // tenants) == 0:
            sent.append(f"tenant-{step // (100 // tenants) % tenants} {step}")
        for name in sent:
            for admitted in admission.enter(AdmissionRequest(name, name.split()[0], 1.0, None, (10,), 10), now):
                left[admitted], began[admitted] = 1.0, now
        for name in sorted(left, key=admission.start_tag)[:WINDOW]:
            left[name] -= 0.01
            if left[name] > 1e-9:
                continue
            del left[name]
            longest = max(longest, now - began[name]) if name.startswith("flood") else longest
            for admitted in admission.leave(name, now, prompt_tokens=10, output_tokens=10):
                left[admitted], began[admitted] = 1.0, now
    return longest


def test_nobody_is_set_aside_for_long() -> None:
    """Twenty tenants exceed the capacity. Once they have caught up, they no longer preempt the flood."""
    assert longest_in_flight(10, until=40.0) <= 3.0
    assert longest_in_flight(20, until=60.0) <= 5.0


@pytest.mark.parametrize("order", [1, -1])
def test_a_weight_that_rounding_swallows_does_no_harm(order: int) -> None:
    engine = Engine(Admission(slots=1, window=WINDOW, bounds=BOUNDS))
    for tenant, weight in (("light", 1e-12), ("heavy", 1e12))[::order]:
        for _ in range(3 * WINDOW):
            engine.enter(tenant, weight=weight)
    engine.run(3.5)
    engine.enter("heavy", weight=1e12)
    engine.run()
    assert len(engine.order) == 6 * WINDOW + 1


def test_chance_makes_few_of_the_others_wait() -> None:
    """Seven tenants with random arrivals, each with its share of the window, and one tenant that fills the rest."""
    chance = random.Random(7)
    engine = Engine(Admission(slots=1, window=32, bounds=BOUNDS), seconds=lambda _: chance.uniform(0.1, 0.7))
    for _ in range(10_000):
        engine.enter("flood")
    for tenant in range(7):
        at = 10.0
        while (at := at + chance.expovariate(6.0)) < 100.0:
            engine.at(at, partial(engine.enter, f"tenant {tenant}"))
    engine.run(100.0)
    found = sorted(wait for tenant in range(7) for wait in engine.waits(f"tenant {tenant}"))
    assert found[len(found) * 95 // 100] == 0.0
    assert found[len(found) * 98 // 100] < 0.02
