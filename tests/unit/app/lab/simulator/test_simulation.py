"""Small simulations of the server's scheduler: its guarantees hold, and a broken scheduler is caught."""

from dataclasses import replace

import pytest

from app.lab.simulator.loader import BrokenPromise
from app.lab.simulator.machine import Machine
from app.lab.simulator.outcome import Outcome
from app.lab.simulator.simulation import Simulation
from app.lab.simulator.workload import Workload
from app.scheduling.admission import Admission
from tests.support.never_drains import NeverDrains

pytestmark = pytest.mark.slow

#: Few slots, little memory and bursts, so that every rule is exercised.
MACHINE = Machine(slots=8, window=32, host_bytes=2**30, bytes_per_rank=100_000)
WORKLOAD = Workload(20_000, seed=1, rate=30.0, adapters=2_000, tenants=200)


def simulated(
    workload: Workload = WORKLOAD, machine: Machine = MACHINE, kind: type[Admission] = Admission
) -> Simulation:
    scheduler = kind(slots=machine.slots, window=machine.window, max_age_s=machine.max_age_s, bounds=machine.bounds)
    simulation = Simulation(workload, machine, scheduler)
    simulation.run()
    assert scheduler.running == scheduler.waiting == 0
    return simulation


def whole(simulation: Simulation) -> dict[str, object]:
    """Return all results that must repeat with the same seed."""
    outcome = Outcome.of(simulation, wall_s=0.0)
    return {
        name: getattr(outcome, name) for name in ("served", "cancelled", "refused", "simulated_s", "ttft_s", "waits")
    } | {"longest": outcome.longest_wait, "tiers": (outcome.host, outcome.slots), "steps": outcome.steps}


@pytest.mark.parametrize(
    ("workload", "machine"),
    [
        (WORKLOAD, MACHINE),
        (replace(WORKLOAD, seed=2, alpha=1.0, cv=1.0), MACHINE),
        (replace(WORKLOAD, requests=10_000, rate=300.0), MACHINE),
        (replace(WORKLOAD, requests=10_000, rate=60.0), replace(MACHINE, slots=1)),
        (replace(WORKLOAD, requests=10_000, rate=60.0), replace(MACHINE, host_bytes=64 * 2**20, loads=1)),
        (replace(WORKLOAD, requests=10_000, rate=60.0), replace(MACHINE, max_age_s=0.0)),
    ],
    ids=["usual", "uniform", "overload", "one slot", "little memory", "no age"],
)
def test_no_adapter_waits_longer_than_promised(workload: Workload, machine: Machine) -> None:
    simulation = simulated(workload, machine)
    assert simulation.watch.violations == []
    assert simulation.watch.judged > 1_000
    ended = simulation.served + simulation.cancelled + simulation.refused.total()
    assert ended == workload.requests
    assert simulation.slots.evictions > 100


def test_nothing_is_left_behind() -> None:
    simulation = simulated()
    for tier in (simulation.host, simulation.slots):
        assert not any(tier.leases(version) for version in tier.residents)
        assert tier.residents == tier.loaded_ids
        assert tier.used <= tier.capacity


def test_the_same_seed_gives_the_same_outcome() -> None:
    workload = replace(WORKLOAD, requests=5_000)
    assert whole(simulated(workload)) == whole(simulated(workload))
    assert whole(simulated(workload)) != whole(simulated(replace(workload, seed=3)))


def test_a_scheduler_that_never_drains_is_caught() -> None:
    workload = replace(WORKLOAD, requests=4_000, rate=120.0, cv=1.0, alpha=0.005, hostile=0.0, collector=0.0, base=0.0)
    machine = replace(MACHINE, slots=1, window=128)
    assert simulated(workload, machine).watch.violated == 0
    watch = simulated(workload, machine, NeverDrains).watch
    assert watch.violated > 5
    assert watch.longest is not None
    assert watch.longest.seconds > 10


def test_a_scheduler_that_overfills_slots_is_caught() -> None:
    simulation = Simulation(WORKLOAD, MACHINE, Admission(slots=MACHINE.slots + 1, window=MACHINE.window))
    with pytest.raises(BrokenPromise, match="every slot was in use"):
        simulation.run()


class Forgetful(Admission):
    """Broken scheduler: ignores staged versions."""

    def staged(self, version_id: int, now: float) -> tuple[str, ...]:
        return ()


def test_a_scheduler_that_forgets_requests_is_caught() -> None:
    simulation = Simulation(WORKLOAD, MACHINE, Forgetful(slots=MACHINE.slots, window=MACHINE.window))
    with pytest.raises(BrokenPromise, match="nothing will admit them"):
        simulation.run()


def test_backlogged_tenants_share_by_weight_with_enough_slots() -> None:
    workload = replace(WORKLOAD, rate=150.0, adapters=16, tenants=4, alpha=1.0, tenant_alpha=1.0, cv=1.0, hostile=2.0)
    simulation = simulated(workload, replace(MACHINE, slots=16))
    assert len(simulation.fairness.indexes) > 2
    assert min(simulation.fairness.indexes) > 0.98
