"""A free slot goes to the version with the tenant's longest queue; test_slots covers the other orders."""

import pickle
import random
from collections.abc import Callable
from functools import partial
from statistics import median

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds
from tests.support.scheduling.engine import Engine, staged

BOUNDS = Bounds(requests=10**6, tenant_requests=10**6, seconds=1e9)


def admission(*, slots: int = 1, window: int = 100, versions: int = 5, max_age_s: float = 2.0) -> Admission:
    gate = Admission(slots=slots, window=window, max_age_s=max_age_s, bounds=BOUNDS)
    return staged(gate, range(1, versions + 1))


def enter(gate: Admission, waiting: dict[str, int], now: float = 0.0, *, tenant: str = "t") -> None:
    """Enter requests by name, each for a version."""
    for name, version in waiting.items():
        gate.enter(AdmissionRequest(name, tenant, 1.0, version, (1,), 1), now)


def test_the_version_for_which_most_wait_goes_first() -> None:
    gate = admission()
    enter(gate, {"runs": 1, "alone": 2, "first": 3, "second": 3})
    assert gate.leave("runs", 1.0) == ("first", "second")


def test_of_about_as_many_the_one_that_waited_longest_goes_first() -> None:
    gate = admission()
    enter(gate, {"runs": 1, "a": 2, "b": 2, "c": 3, "d": 3, "e": 3})
    assert gate.leave("runs", 1.0) == ("a", "b")


def test_who_gave_up_waiting_does_not_count() -> None:
    gate = admission()
    enter(gate, {"runs": 1, "alone": 2, "first": 3, "second": 3})
    gate.leave("second", 0.5)
    assert gate.leave("runs", 1.0) == ("alone",)


def test_joined_requests_count_once_the_slot_is_lost() -> None:
    gate = admission(window=1, max_age_s=100.0)
    enter(gate, {"runs": 1, "alone": 2, "first": 1, "second": 1})
    enter(gate, {"other": 3}, tenant="u")
    assert gate.leave("runs", 1.0) == ("other",)  # version 1 has lost its slot and has two waiting requests
    assert gate.leave("other", 2.0) == ("first",)


def test_a_crowd_of_others_at_the_same_version_does_not_count() -> None:
    gate = admission()
    enter(gate, {"runs": 1, "big": 1}, tenant="u")
    gate.enter(AdmissionRequest("huge", "u", 1.0, 1, (10**6,), 1), 0.0)  # tenant u has a far larger counter than t
    enter(gate, {f"crowd {number}": 3 for number in range(8)}, tenant="u")
    enter(gate, {"alone": 2, "own": 3})
    for name in ("runs", "big"):
        gate.leave(name, 1.0)
    assert gate.leave("huge", 1.0) == ("alone",)


def test_a_crowd_takes_no_turn_of_another_tenant() -> None:
    gate = admission()
    enter(gate, {"runs": 1} | {f"crowd {number}": 2 for number in range(50)}, tenant="greedy")
    enter(gate, {"modest": 3}, tenant="modest")
    assert gate.leave("runs", 1.0) == ("modest",)


def test_a_returning_crowd_delays_no_version_beyond_its_bound() -> None:
    """One slot and one version ahead: the bound is two rounds of the maximum age and one drain."""
    gate = admission(versions=3)
    engine = Engine(gate)
    engine.ended = lambda request: engine.enter("t", request.version_id) if request.version_id != 3 else None
    for version in (1, 2):
        for _ in range(8):
            engine.enter("t", version)
    lone = []
    engine.at(10.5, lambda: lone.append(engine.enter("t", 3)))
    engine.run(30.0)
    assert engine.started[lone[0].request_id] - 10.5 <= 2 * (2.0 + 1.0)


def test_many_adapters_wait_less_than_in_order_of_arrival() -> None:
    """200 adapters of one tenant on 4 slots, under overload.

    For comparison, the same requests come from 200 tenants, one per adapter. Then only the fair order decides.
    """
    assert median_wait(lambda version: "t") < 0.8 * median_wait(lambda version: f"tenant {version}")


def median_wait(tenant_of: Callable[[int], str]) -> float:
    chance = random.Random(3)
    engine = Engine(admission(slots=4, window=32, versions=200, max_age_s=0.5), seconds=lambda _: 0.35)
    at = 0.0
    while (at := at + chance.expovariate(80.0)) < 60.0:
        version = 1 + int(200 * chance.random() ** (1 / 0.3))
        engine.at(at, partial(engine.enter, tenant_of(version), version))
    engine.run()
    return median(engine.started[name] - engine.entered[name] for name in engine.started)


def test_nothing_is_kept_of_lines_that_are_gone() -> None:
    """Bursts come and go at a version that always holds its slot, and at the base model."""
    assert kept(4_000) < 2 * kept(200)


def kept(count: int) -> int:
    """Return the size in bytes of the scheduler's state after this many tenants."""
    engine = Engine(admission(window=2, versions=1))
    engine.ended = lambda request: engine.enter("stays", 1) if request.tenant == "stays" else None
    engine.enter("stays", 1)
    for number in range(count):
        for version in (None, 1):
            for _ in range(3):
                engine.enter(f"tenant {number}", version)
        engine.run(engine.now + 6.0)
    assert engine.admission.waiting < 10
    return len(pickle.dumps(engine.admission))
