"""Small simulations of a fleet: nothing is lost, results repeat, and the routing rule saves loads."""

import pytest

from app.lab.bench.routing import Options
from app.lab.simulator.fleet import FleetOutcome, FleetSimulation
from app.lab.simulator.machine import Machine
from app.lab.simulator.policies import POLICIES, Tenora
from app.lab.simulator.traces import TRACES, Trace
from app.scheduling.admission_request import Bounds

MACHINE = Machine(slots=4, window=32, host_bytes=2**29, bytes_per_rank=100_000)


def simulated(policy: str = "tenora", trace: str = "zipf", *, seconds: float = 5.0, gateways: int = 1) -> FleetOutcome:
    arrivals = Trace(trace, 60.0, seconds, seed=3, adapters=60)
    return FleetSimulation(arrivals, MACHINE, 3, [POLICIES[policy](number) for number in range(gateways)]).run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trace", TRACES)
def test_every_request_is_answered(policy: str, trace: str) -> None:
    outcome = simulated(policy, trace)
    assert outcome.served == outcome.requests > 100
    assert outcome.refused == 0
    assert outcome.fetches <= outcome.stages <= outcome.copies
    assert 0 < outcome.ttft_p50_s <= outcome.ttft_p99_s <= outcome.ttft_max_s
    assert 0 <= outcome.warm < 1 <= outcome.imbalance


def test_refused_requests_are_no_load() -> None:
    machine = Machine(slots=1, window=1, bounds=Bounds(requests=3, tenant_requests=3))
    router = Tenora(1)
    outcome = FleetSimulation(Trace("zipf", 100.0, 5.0, seed=3, adapters=9), machine, 2, [router]).run()
    assert outcome.refused > 100
    assert outcome.served + outcome.refused == outcome.requests


def test_the_same_seed_gives_the_same_outcome() -> None:
    assert simulated(gateways=2) == simulated(gateways=2)
    assert simulated(gateways=2) != simulated(gateways=1)


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [1, 3])
def test_the_rule_saves_loads_at_no_later_first_tokens(gateways: int) -> None:
    options = Options(seconds=15.0)
    ours, theirs = (
        FleetSimulation(
            options.trace("zipf", 1),
            options.machine,
            options.replicas,
            [POLICIES[policy](number) for number in range(gateways)],
        ).run()
        for policy in ("tenora", "least loaded")
    )
    assert ours.copies <= 0.67 * theirs.copies
    assert ours.fetches <= 0.67 * theirs.fetches
    assert ours.ttft_p99_s <= theirs.ttft_p99_s


def test_two_small_replicas_answer_more_requests_without_a_load() -> None:
    """Two replicas with 4 slots each and 16 adapters."""
    trace, machine = Trace("zipf", 15.0, 60.0, seed=1, adapters=16), Machine(slots=4, window=64)
    ours, theirs = (
        FleetSimulation(trace, machine, 2, [POLICIES[policy](1)]).run() for policy in ("tenora", "round robin")
    )
    assert ours.warm > 1.4 * theirs.warm
