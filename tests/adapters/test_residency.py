from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.residency import Admission, Decision, Residency, SlotGate

VERSIONS = st.integers(1, 6)


def loaded(residency: Residency, *versions: int) -> Residency:
    """Load each version and release it."""
    for version in versions:
        assert residency.admit(version).admission is Admission.LOAD
        assert residency.loaded(version) is False
        assert residency.release(version) is False
    return residency


def test_the_least_recently_used_is_evicted() -> None:
    residency = loaded(Residency(2), 1, 2)
    assert residency.admit(1) == Decision(Admission.RESIDENT)
    residency.release(1)
    assert residency.admit(3) == Decision(Admission.LOAD, evict=2)
    assert residency.residents == {1, 3}


def test_what_ran_until_just_now_counts_as_used_last() -> None:
    residency = loaded(Residency(2), 1, 2)
    residency.admit(1)
    residency.admit(2)
    residency.release(2)
    residency.release(1)
    assert residency.admit(3) == Decision(Admission.LOAD, evict=2)


def test_leased_and_loading_versions_stay() -> None:
    residency = loaded(Residency(3), 1, 2)
    residency.admit(1)
    residency.admit(2)
    residency.admit(3)
    assert residency.admit(4) == Decision(Admission.WAIT)
    residency.release(1)
    assert residency.admit(4) == Decision(Admission.LOAD, evict=1)


def test_a_second_request_joins_the_load() -> None:
    residency = Residency(1)
    assert residency.admit(1).admission is Admission.LOAD
    assert residency.admit(1).admission is Admission.LOADING
    residency.loaded(1)
    residency.release(1)
    assert residency.admit(2).admission is Admission.WAIT
    residency.release(1)
    assert residency.admit(2) == Decision(Admission.LOAD, evict=1)


def test_a_failed_load_frees_its_place_and_its_leases_still_count() -> None:
    residency = Residency(1)
    residency.admit(1)
    residency.failed(1)
    assert residency.residents == frozenset()
    assert residency.admit(1).admission is Admission.LOAD
    residency.loaded(1)
    residency.release(1)
    assert residency.admit(2).admission is Admission.WAIT
    residency.release(1)
    assert residency.admit(2) == Decision(Admission.LOAD, evict=1)


def test_a_removed_version_is_taken_out_with_its_last_lease() -> None:
    residency = loaded(Residency(2), 1)
    residency.admit(1)
    assert residency.remove(1) is False
    assert residency.release(1) is True
    assert residency.residents == frozenset()
    assert residency.remove(1) is False


def test_a_version_removed_while_it_loads_is_taken_out_when_nobody_waits_any_more() -> None:
    residency = Residency(2)
    residency.admit(1)
    assert residency.remove(1) is False
    assert residency.release(1) is False
    assert residency.loaded(1) is True
    assert residency.residents == frozenset()


def test_idle_versions_are_taken_out_at_once() -> None:
    residency = loaded(Residency(2), 1)
    assert residency.remove(1) is True
    assert loaded(residency, 1, 2).admit(3).evict == 1


def test_a_lease_that_was_never_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="no lease"):
        Residency(1).release(1)


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacities_below_one_are_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="allowed 1 or more"):
        Residency(capacity)
    with pytest.raises(ValueError, match="allowed 1 or more"):
        SlotGate(capacity)


class ResidencyMachine(RuleBasedStateMachine):
    """Residency against a model of what the engine holds."""

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.residency = Residency(capacity)
        self.loading: set[int] = set()
        self.engine: list[int] = []  # loaded, the least recently used first
        self.leases: Counter[int] = Counter()
        self.removed: set[int] = set()

    def use(self, version: int) -> None:
        if version in self.engine:
            self.engine.remove(version)
            self.engine.append(version)

    def take_out(self, version: int, said: bool) -> None:
        due = version in self.removed and version in self.engine and not self.leases[version]
        assert said is due
        if due:
            self.engine.remove(version)
            self.removed.remove(version)

    @rule(version=VERSIONS)
    def admit(self, version: int) -> None:
        free = [other for other in self.engine if not self.leases[other]]
        full = len(self.engine) + len(self.loading) == self.capacity
        decision = self.residency.admit(version)
        if version in self.engine:
            assert decision == Decision(Admission.RESIDENT)
            self.use(version)
        elif version in self.loading:
            assert decision == Decision(Admission.LOADING)
        elif full and not free:
            assert decision == Decision(Admission.WAIT)
            return
        else:
            assert decision == Decision(Admission.LOAD, evict=free[0] if full else None)
            if full:
                self.engine.remove(free[0])
            self.loading.add(version)
        self.leases[version] += 1

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), works=st.booleans())
    def finish_load(self, data: st.DataObject, works: bool) -> None:
        version = data.draw(st.sampled_from(sorted(self.loading)))
        self.loading.remove(version)
        if works:
            self.engine.append(version)
            self.take_out(version, self.residency.loaded(version))
        else:
            self.residency.failed(version)
            self.removed.discard(version)

    @precondition(lambda self: +self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(+self.leases)))
        self.leases[version] -= 1
        self.use(version)
        self.take_out(version, self.residency.release(version))

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        if version in self.engine or version in self.loading:
            self.removed.add(version)
        self.take_out(version, self.residency.remove(version))

    @invariant()
    def residents_are_those_of_the_engine_and_fit(self) -> None:
        residents = self.residency.residents
        assert residents == set(self.engine) | self.loading
        assert len(residents) <= self.capacity
        assert {version for version in self.engine if self.leases[version]} <= residents


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_a_slot_is_shared_by_the_requests_of_one_adapter() -> None:
    gate = SlotGate(1)
    assert gate.enter("a", 1, 0.0) is True
    assert gate.enter("b", 1, 0.0) is True
    assert gate.enter("c", 2, 0.0) is False
    assert gate.leave("a", 1.0) == ()
    assert gate.leave("b", 1.0) == ("c",)


def test_joining_stops_once_the_oldest_waiter_is_too_old() -> None:
    gate = SlotGate(1, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    assert gate.enter("b1", 2, 10.0) is False
    assert gate.enter("a2", 1, 12.0) is True
    assert gate.enter("a3", 1, 12.1) is False
    gate.leave("a1", 12.2)
    assert gate.leave("a2", 12.3) == ("b1",)
    assert gate.leave("b1", 13.0) == ("a3",)


def test_a_slot_brings_in_all_who_wait_for_its_adapter() -> None:
    gate = SlotGate(1)
    gate.enter("a", 1, 0.0)
    for request in ("b1", "b2", "b3"):
        gate.enter(request, 2, 0.0)
    assert gate.leave("a", 1.0) == ("b1", "b2", "b3")


def test_those_held_back_join_once_the_old_waiter_gives_up() -> None:
    gate = SlotGate(1, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    gate.enter("b1", 2, 0.0)
    assert gate.enter("a2", 1, 3.0) is False
    assert gate.leave("b1", 3.5) == ("a2",)


def test_those_held_back_join_once_the_old_waiter_has_its_slot() -> None:
    gate = SlotGate(2, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    gate.enter("b1", 2, 0.0)
    gate.enter("c1", 3, 0.0)
    assert gate.enter("a2", 1, 3.0) is False
    assert gate.leave("b1", 4.0) == ("c1", "a2")


def test_leaving_twice_or_without_entering_changes_nothing() -> None:
    gate = SlotGate(1)
    gate.enter("a", 1, 0.0)
    gate.enter("b", 2, 0.0)
    assert gate.leave("never", 0.0) == ()
    assert gate.leave("a", 0.0) == ("b",)
    assert gate.leave("a", 0.0) == ()
    assert gate.enter("c", 3, 0.0) is False


def test_entering_twice_is_refused() -> None:
    gate = SlotGate(1)
    gate.enter("a", 1, 0.0)
    gate.enter("b", 2, 0.0)
    for request in ("a", "b"):
        with pytest.raises(ValueError, match="already"):
            gate.enter(request, 1, 0.0)


def test_a_pinned_adapter_is_joined_however_long_others_wait() -> None:
    gate = SlotGate(2, max_age_s=2.0)
    gate.enter("keeper", 1, 0.0)
    gate.enter("a1", 2, 0.0)
    gate.enter("b1", 3, 0.0)
    assert gate.enter("k1", 1, 10.0) is False
    assert gate.pin(1, 10.0) == ("k1",)
    assert gate.enter("k2", 1, 10.0) is True
    assert gate.enter("a2", 2, 10.0) is False
    gate.unpin(1)
    assert gate.enter("k3", 1, 10.0) is False


def test_only_who_has_a_slot_can_be_pinned() -> None:
    gate = SlotGate(1)
    gate.enter("a", 1, 0.0)
    gate.enter("b", 2, 0.0)
    with pytest.raises(ValueError, match="no slot"):
        gate.pin(2, 0.0)


class GateMachine(RuleBasedStateMachine):
    """SlotGate's promises, checked from outside on what it answers."""

    @initialize(slots=st.integers(1, 3), max_age_s=st.sampled_from([0.0, 1.0, 2.0]))
    def start(self, slots: int, max_age_s: float) -> None:
        self.slots, self.max_age_s = slots, max_age_s
        self.gate = SlotGate(slots, max_age_s=max_age_s)
        self.now = 0.0
        self.count = 0
        self.running: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        #: When each waiting adapter took its place in the queue; in that order.
        self.since: dict[int, float] = {}
        #: Pinned versions to the requests that keep their slots.
        self.keepers: dict[int, str] = {}

    def run(self, requests: tuple[str, ...]) -> None:
        """Check an admission against the rules, adapter by adapter."""
        assert len(set(requests)) == len(requests)
        for version in dict.fromkeys(self.waiting[request] for request in requests):
            mine = {request for request, other in self.waiting.items() if other == version}
            assert mine <= set(requests), "a visit admits all that wait for its adapter"
            ahead = list(self.since)[: list(self.since).index(version)]
            if version in self.keepers:
                pass  # takes no slot from anybody
            elif version in self.running.values():
                overtaken = [self.now - self.since[other] for other in ahead]
                assert all(age <= self.max_age_s for age in overtaken), "joined in front of one that is too old"
            else:
                assert not ahead, "a slot goes to the oldest waiting adapter"
            for request in mine:
                self.running[request] = self.waiting.pop(request)
            del self.since[version]

    @rule(version=VERSIONS)
    def enter(self, version: int) -> None:
        self.count += 1
        request = f"request {self.count}"
        self.waiting[request] = version
        self.since.setdefault(version, self.now)
        if self.gate.enter(request, version, self.now):
            self.run((request,))

    @precondition(lambda self: self.running.keys() - self.keepers.values())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.running.keys() - self.keepers.values())))
        del self.running[request]
        self.run(self.gate.leave(request, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        version = self.waiting.pop(request)
        if version not in self.waiting.values():
            del self.since[version]
        self.run(self.gate.leave(request, self.now))

    @precondition(lambda self: len(self.keepers) + 1 < self.slots and set(self.running.values()) - set(self.keepers))
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(set(self.running.values()) - set(self.keepers))))
        self.keepers[version] = next(request for request, other in self.running.items() if other == version)
        self.run(self.gate.pin(version, self.now))

    @precondition(lambda self: self.keepers)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.keepers)))
        self.gate.unpin(version)
        request = self.keepers.pop(version)
        del self.running[request]
        self.run(self.gate.leave(request, self.now))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def distinct_adapters_fit_the_slots(self) -> None:
        assert len(set(self.running.values())) <= self.slots

    @invariant()
    def no_slot_is_idle_while_somebody_waits(self) -> None:
        assert not self.waiting or len(set(self.running.values())) == self.slots

    @invariant()
    def the_pinned_never_wait(self) -> None:
        assert not self.keepers.keys() & set(self.waiting.values())

    def teardown(self) -> None:
        """Whoever waits is admitted once those before them end, the pinned aside: nobody is lost."""
        while left := getattr(self, "running", {}).keys() - getattr(self, "keepers", {}).values():
            request = min(left)
            del self.running[request]
            self.run(self.gate.leave(request, self.now))
        assert not getattr(self, "waiting", None)


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
