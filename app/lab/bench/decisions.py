"""``tenora server bench decisions``: cost of a scheduling decision with ten thousand waiting requests."""

import random
import sys
import time
from dataclasses import dataclass

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds
from app.support.gc_tuning import collect_rarely

#: Seconds between the ends of requests. Nearly all that waits for a slot soon exceeds the maximum age.
_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Scenario:
    """Queue of constant length: each request that ends is replaced by a new one.

    Attributes:
        versions: number of staged versions, each requested by any tenant. 0 means that all request the base model.
        deadlines: True if every request has a deadline, so that its wait is estimated.
    """

    tenants: int
    versions: int
    slots: int = 64
    window: int = 64
    queued: int = 10_000
    deadlines: bool = False


SCENARIOS = {
    "1,000 tenants, base model": Scenario(1_000, 0),
    "1,000 tenants, 5,000 adapters": Scenario(1_000, 5_000),
    "1,000 tenants, 5,000 adapters, deadlines": Scenario(1_000, 5_000, deadlines=True),
    "1,000 tenants, 64 adapters that all share": Scenario(1_000, 64),
    "1,000 tenants, 5,000 adapters, 4 slots": Scenario(1_000, 5_000, slots=4),
    "10,000 tenants, base model": Scenario(10_000, 0),
    "1 tenant, base model": Scenario(1, 0),
    "1 tenant, 5,000 adapters": Scenario(1, 5_000),
}


def measure(*, steps: int = 20_000) -> dict[str, float]:
    """Microseconds per decision by scenario. See :func:`cost_of_decision`."""
    return {name: cost_of_decision(scenario, steps=steps) for name, scenario in SCENARIOS.items()}


def cost_of_decision(scenario: Scenario, *, steps: int, seed: int = 1) -> float:
    """CPU time of this thread per ``enter`` or ``leave`` in microseconds, over ``steps`` pairs of them."""
    chance = random.Random(seed)  # noqa: S311 - a workload, no secret
    bounds = Bounds(requests=10**9, tenant_requests=10**9, seconds=1e12)
    admission = Admission(slots=scenario.slots, window=scenario.window, bounds=bounds)
    for version_id in range(1, scenario.versions + 1):
        admission.staged(version_id, 0.0)
    running: list[str] = []
    for number in range(scenario.queued + scenario.window):
        running += admission.enter(_admission_request(scenario, chance, number), 0.0)
    spent = 0
    for number in range(steps):
        now = number * _STEP_S
        ended, output = running.pop(chance.randrange(len(running))), chance.randint(8, 64)
        request = _admission_request(scenario, chance, scenario.queued + scenario.window + number)
        began = time.thread_time_ns()
        running += admission.leave(ended, now, output_tokens=output)
        running += admission.enter(request, now)
        spent += time.thread_time_ns() - began
    return spent / 1000 / (2 * steps)


def _admission_request(scenario: Scenario, chance: random.Random, number: int) -> AdmissionRequest:
    return AdmissionRequest(
        request_id=str(number),
        tenant=f"tenant {chance.randrange(scenario.tenants)}",
        weight=1.0,
        version_id=chance.randint(1, scenario.versions) if scenario.versions else None,
        prompts=(chance.randint(8, 64),),
        output_tokens=4096,
        deadline=1e12 if scenario.deadlines else None,
    )


if __name__ == "__main__":
    collect_rarely()  # as the server does
    for name, microseconds in measure().items():
        sys.stdout.write(f"{microseconds:6.1f} us  {name}\n")
