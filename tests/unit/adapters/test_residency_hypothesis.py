"""Residency compared with a reference model that scans plain collections."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.residency import Admission, Decision, Residency

VERSIONS = st.integers(1, 8)
SIZES = st.integers(1, 5)
HALF_LIFE_S = 10.0


@dataclass
class Held:
    """The model's state of a resident; ``uses`` is the decayed number of uses at time ``at``."""

    size: int
    cost_s: float
    uses: float
    at: float
    loading: bool = True

    def uses_at(self, now: float) -> float:
        return self.uses * 0.5 ** ((now - self.at) / HALF_LIFE_S)

    def worth(self, now: float) -> float:
        return self.uses_at(now) * self.cost_s / self.size


class ResidencyMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.residency = Residency(capacity, half_life_s=HALF_LIFE_S)
        self.now = 0.0
        self.held: dict[int, Held] = {}
        self.leases: Counter[int] = Counter()
        self.removed: set[int] = set()
        #: Size by which loads exceeded their plan.
        self.surprise = 0

    def idle(self) -> set[int]:
        return {version for version, held in self.held.items() if not held.loading and not self.leases[version]}

    def used(self) -> int:
        return sum(held.size for held in self.held.values())

    def take_out(self, version: int, said: bool) -> None:
        due = version in self.removed and version in self.idle()
        assert said is due
        if due:
            self.forget(version)

    def forget(self, version: int) -> None:
        del self.held[version]
        self.removed.discard(version)

    @rule(version=VERSIONS, size=SIZES, cost_s=st.sampled_from([0.1, 1.0, 3.0]))
    def admit(self, version: int, size: int, cost_s: float) -> None:
        held, idle = self.held.get(version), self.idle()
        decision = self.residency.admit(version, size, now=self.now, cost_s=cost_s)
        if held:
            assert decision == Decision(Admission.LOADING if held.loading else Admission.RESIDENT)
            held.uses, held.at, held.cost_s = held.uses_at(self.now) + 1, self.now, cost_s
        else:
            busy = self.used() - sum(self.held[other].size for other in idle)
            if busy and busy + size > self.capacity:
                assert decision == Decision(Admission.WAIT)
                return
            assert decision.admission is Admission.LOAD
            self.evicted(decision.evict, idle, size)
            self.held[version] = Held(size, cost_s, 1.0, self.now)
        self.leases[version] += 1

    def evicted(self, versions: tuple[int, ...], idle: set[int], size: int) -> None:
        """Check evictions: only idle versions, no more than needed, and none worth more than one that stays."""
        for version in versions:
            assert self.used() + size > self.capacity, "evicted without need"
            assert version in idle
            idle.remove(version)
            worth = self.held[version].worth(self.now)
            assert all(worth <= self.held[other].worth(self.now) * (1 + 1e-9) for other in idle)
            self.forget(version)
        assert self.used() + size <= self.capacity or not self.held, "too little was evicted"

    @precondition(lambda self: any(held.loading for held in self.held.values()))
    @rule(data=st.data(), works=st.booleans(), size=st.none() | SIZES)
    def finish_load(self, data: st.DataObject, works: bool, size: int | None) -> None:
        version = data.draw(st.sampled_from(sorted(key for key, held in self.held.items() if held.loading)))
        if not works:
            self.residency.failed(version)
            self.forget(version)
            return
        said, held = self.residency.loaded(version, size), self.held[version]
        self.surprise += max(0, (size or held.size) - held.size)
        held.loading, held.size = False, size or held.size
        self.take_out(version, said)

    @precondition(lambda self: +self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(+self.leases)))
        said = self.residency.release(version, now=self.now)
        self.leases[version] -= 1
        if held := self.held.get(version):
            held.uses, held.at = max(held.uses_at(self.now), 1.0), self.now
        self.take_out(version, said)

    @rule(version=VERSIONS, size=SIZES, seconds=st.sampled_from([0.0, 3.0, 40.0]))
    def serve(self, version: int, size: int, seconds: float) -> None:
        """Run one request from start to end, so that there are idle versions to evict."""
        if version in self.held or version in +self.leases:
            return
        self.admit(version, size, 1.0)
        if version in self.held:
            self.held[version].loading = False
            self.take_out(version, self.residency.loaded(version))
            self.now += seconds
            self.leases[version] -= 1
            self.held[version].uses, self.held[version].at = max(self.held[version].uses_at(self.now), 1.0), self.now
            self.take_out(version, self.residency.release(version, now=self.now))

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        if version in self.held:
            self.removed.add(version)
        self.take_out(version, self.residency.remove(version))

    @rule(version=VERSIONS)
    def evict(self, version: int) -> None:
        idle = version in self.idle()
        assert self.residency.evict(version) is idle
        if idle:
            self.forget(version)

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 300.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def residents_are_those_of_the_model(self) -> None:
        assert self.residency.residents == self.held.keys()
        assert len(self.residency) == len(self.held)
        assert self.residency.loaded_ids == {version for version, held in self.held.items() if not held.loading}
        assert self.residency.used == self.used()
        assert {version: self.residency.leases(version) for version in +self.leases} == +self.leases

    @invariant()
    def all_fit_but_a_giant_alone(self) -> None:
        assert self.used() <= self.capacity + self.surprise or len(self.held) == 1
        for size in (1, 3):
            assert self.residency.would_fit(size) is (self.used() + size <= self.capacity)

    def teardown(self) -> None:
        """Check that every version finds room once all leases are released."""
        if not hasattr(self, "residency"):
            return
        for version in [key for key, held in self.held.items() if held.loading]:
            self.residency.failed(version)
        for version in list((+self.leases).elements()):
            self.residency.release(version, now=self.now)
        assert self.residency.admit(99, 100, now=self.now).admission is Admission.LOAD
        assert self.residency.residents == {99}


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
