"""Slots: joining, waiting and draining. test_admission_machine covers the rules in full."""

import pytest

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.slot_waits import DRAINS_SEEN
from app.scheduling.snapshot import VersionState
from tests.support.scheduling.engine import staged


class Gate:
    """Short interface to an admission with small requests and staged versions."""

    def __init__(self, slots: int, *, window: int = 100, versions: int = 5, max_age_s: float = 2.0) -> None:
        self.admission = staged(Admission(slots=slots, window=window, max_age_s=max_age_s), range(1, versions + 1))

    def enter(self, name: str, version: int | None, now: float = 0.0, *, tenant: str = "t", sequences: int = 1) -> bool:
        return name in self.admission.enter(AdmissionRequest(name, tenant, 1.0, version, (1,), 1, sequences), now)

    def leave(self, name: str, now: float) -> tuple[str, ...]:
        return self.admission.leave(name, now)

    def state(self, version: int, now: float = 0.0) -> VersionState:
        return next(state for state in self.admission.snapshot(now).versions if state.version_id == version)


def test_a_slot_is_shared_by_the_requests_of_one_version() -> None:
    gate = Gate(1)
    assert gate.enter("a", 1)
    assert gate.enter("b", 1)
    assert not gate.enter("c", 2)
    assert gate.leave("a", 1.0) == ()
    assert gate.leave("b", 1.0) == ("c",)


def test_the_base_model_needs_no_slot() -> None:
    gate = Gate(1)
    assert gate.enter("a", 1)
    assert gate.enter("b", None)
    assert not gate.enter("c", 2)


def test_a_version_takes_a_slot_only_once_it_is_staged() -> None:
    gate = Gate(1, versions=1)
    assert not gate.enter("b", 2)
    assert not gate.enter("c", 3)
    assert list(gate.admission.versions_to_stage()) == [2, 3]
    assert gate.enter("a", 1)
    assert gate.leave("a", 0.0) == ()
    assert gate.admission.staged(3, 0.0) == ("c",)
    assert list(gate.admission.versions_to_stage()) == [2]


def test_a_version_that_was_unstaged_waits_for_the_next_time() -> None:
    gate = Gate(1)
    gate.enter("a", 1)
    gate.enter("b", 2)
    gate.admission.unstaged(2)
    assert list(gate.admission.versions_to_stage()) == [2]
    assert gate.leave("a", 0.0) == ()
    assert gate.admission.staged(2, 0.0) == ("b",)


def test_joining_stops_once_a_waiter_is_too_old() -> None:
    gate = Gate(1, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    assert not gate.enter("b1", 2, 10.0)
    assert gate.enter("a2", 1, 12.0)
    assert not gate.enter("a3", 1, 12.1)
    assert gate.state(1).draining
    gate.leave("a1", 12.2)
    assert gate.leave("a2", 12.3) == ("b1",)
    assert gate.leave("b1", 13.0) == ("a3",)


def test_a_slot_brings_in_all_who_wait_for_its_version() -> None:
    gate = Gate(1)
    gate.enter("a", 1)
    for name in ("b1", "b2", "b3"):
        gate.enter(name, 2)
    assert gate.leave("a", 1.0) == ("b1", "b2", "b3")


def filled(*, max_age_s: float = 1.0) -> Gate:
    """Give version 2 the only slot at 11.0, for four waiting requests; the window has room for two of them.

    Version 3 has waited since 10.2. Its bound is two rounds, of which one is over. Slot tenures have taken one second
    so far, so version 2 must begin to drain at 11.2 + 2 x ``max_age_s`` at the latest.
    """
    gate = Gate(1, window=2, max_age_s=max_age_s)
    for number in range(DRAINS_SEEN):
        gate.enter(f"before {number}", 4, float(number))
        gate.leave(f"before {number}", number + 1.0)
    gate.enter("a", 1, 10.0, sequences=2)
    for name in ("b1", "b2", "b3", "b4"):
        gate.enter(name, 2, 10.1)
    gate.enter("c", 3, 10.2)
    assert gate.leave("a#1", 11.0) == ()
    assert gate.leave("a", 11.0) == ("b1", "b2")
    return gate


def test_a_version_admits_all_waiters_before_it_drains() -> None:
    gate = filled()
    assert gate.leave("b1", 11.3) == ("b3",)
    assert not gate.state(2).draining
    assert gate.leave("b2", 12.3) == ("b4",)
    assert gate.state(2).draining
    gate.leave("b3", 12.4)
    assert gate.leave("b4", 12.5) == ("c",)


def test_it_is_given_as_long_as_those_that_wait_can_bear() -> None:
    gate = filled()
    assert gate.leave("b1", 11.3) == ("b3",)
    assert gate.leave("b2", 13.19) == ("b4",)


@pytest.mark.parametrize("max_age_s", [1.0, 0.25])
def test_it_is_given_no_longer_than_those_that_wait_can_bear(max_age_s: float) -> None:
    gate = filled(max_age_s=max_age_s)
    assert gate.leave("b1", 11.3) == ("b3",)
    assert gate.leave("b2", 10.2 + 2 * max_age_s + 1.01) == ()
    assert gate.state(2).draining
    assert gate.leave("b3", 13.4) == ("c",)
    assert gate.leave("c", 13.5) == ("b4",)


def test_a_resident_version_may_be_joined_until_others_are_due() -> None:
    gate = filled()
    gate.leave("b3", 11.1)
    gate.leave("b4", 11.1)
    gate.enter("b5", 2, 11.3)
    assert gate.leave("b1", 12.19) == ("b5",)
    assert not gate.state(2).draining


def test_who_comes_later_does_not_keep_a_version_from_draining() -> None:
    gate = filled()
    gate.leave("b3", 11.1)
    gate.leave("b4", 11.1)
    assert not gate.enter("b5", 2, 12.21)
    assert gate.state(2).draining
    gate.leave("b1", 12.3)
    assert gate.leave("b2", 12.4) == ("c",)


def test_a_drained_version_does_not_jump_back_in_front() -> None:
    gate = Gate(1, window=1, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    gate.enter("a2", 1, 0.0)  # older than b1, and waits for the window
    gate.enter("b1", 2, 1.0)
    gate.enter("c1", None, 4.0)
    assert gate.state(1).draining
    assert gate.leave("a1", 4.0) == ("b1",)
    assert gate.leave("b1", 5.0) == ("a2",)


def test_those_held_back_join_once_the_old_waiter_gives_up() -> None:
    gate = Gate(1, max_age_s=2.0)
    gate.enter("a1", 1, 0.0)
    gate.enter("b1", 2, 0.0)
    gate.enter("x", None, 3.0)
    assert not gate.enter("a2", 1, 3.0)
    assert gate.leave("b1", 3.5) == ("a2",)
    assert not gate.state(1).draining


def test_overdue_versions_drain_those_with_most_service() -> None:
    gate = Gate(3, max_age_s=2.0)
    for name, version in (("a", 1), ("b1", 2), ("b2", 2), ("c1", 3), ("c2", 3), ("c3", 3)):
        gate.enter(name, version, 0.0)
    gate.enter("d", 4, 0.0)
    gate.enter("e", 5, 1.0)
    gate.enter("x", None, 2.5)
    assert [gate.state(version).draining for version in (1, 2, 3)] == [False, False, True]
    gate.enter("y", None, 3.5)
    assert [gate.state(version).draining for version in (1, 2, 3)] == [False, True, True]


def test_a_free_slot_goes_to_the_tenant_that_had_least() -> None:
    gate = Gate(1)
    gate.enter("a", 1, tenant="greedy")
    gate.enter("b", 2, tenant="greedy")
    gate.enter("c", 3, 1.0, tenant="modest")
    assert gate.leave("a", 1.5) == ("c",)


def test_an_overdue_request_precedes_the_least_served_tenant() -> None:
    gate = Gate(1, max_age_s=2.0)
    gate.enter("a", 1, tenant="greedy")
    gate.enter("b", 2, tenant="greedy")
    gate.enter("c", 3, 1.0, tenant="modest")
    assert gate.leave("a", 2.5) == ("b",)


def test_a_pinned_version_is_joined_however_long_others_wait() -> None:
    gate = Gate(2, max_age_s=2.0)
    assert gate.enter("keeper", 1, tenant="", sequences=0)
    gate.enter("a1", 2)
    gate.enter("b1", 3)
    gate.enter("b2", 3)
    gate.enter("c1", 4)
    gate.enter("x", None, 10.0)
    assert gate.state(1).draining
    assert not gate.enter("k1", 1, 10.0)
    assert gate.admission.pin(1, 10.0) == ("k1",)
    assert gate.enter("k2", 1, 10.0)
    assert not gate.enter("a2", 2, 10.0)
    gate.admission.unpin(1)
    gate.enter("y", None, 10.0)
    assert not gate.enter("k3", 1, 10.0)


def test_a_pin_keeps_its_slot_while_nothing_of_it_runs() -> None:
    gate = Gate(1)
    gate.enter("keeper", 1, tenant="", sequences=0)
    gate.admission.pin(1, 0.0)
    gate.enter("b", 2)
    assert gate.leave("keeper", 0.0) == ()
    assert gate.state(1).holds_slot
    gate.admission.unpin(1)
    assert gate.enter("x", None, 1.0)
    assert gate.state(2).holds_slot


def test_only_who_has_a_slot_can_be_pinned() -> None:
    gate = Gate(1)
    gate.enter("a", 1)
    gate.enter("b", 2)
    for version in (2, 3):
        with pytest.raises(ValueError, match="no slot"):
            gate.admission.pin(version, 0.0)


def test_what_takes_no_place_does_not_wait_for_the_window() -> None:
    gate = Gate(2, window=1)
    assert gate.enter("a", None)
    assert gate.enter("load", 1, tenant="", sequences=0)
    assert gate.enter("pin", 2, tenant="", sequences=0)
    assert not gate.enter("third", 3, tenant="", sequences=0)
    assert gate.leave("load", 1.0) == ("third",)


def test_sequences_enter_singly_and_alternate_with_arrivals() -> None:
    gate = Gate(1, window=2)
    gate.enter("a", None)
    assert gate.enter("wide", None, sequences=4)
    assert not gate.enter("b", None)
    assert gate.leave("a", 1.0) == ("wide#1",)
    assert gate.leave("wide", 2.0) == ("b",)
    assert gate.leave("wide#1", 2.0) == ("wide#2",)
    assert gate.leave("b", 3.0) == ("wide#3",)
    assert gate.admission.waiting == 0


def test_a_request_with_an_abandoned_sequence_sends_no_other() -> None:
    gate = Gate(1, window=2)
    gate.enter("wide", None, sequences=4)
    assert gate.leave("wide#2", 1.0) == gate.leave("wide", 1.0) == gate.leave("wide#1", 1.0) == ()
    assert (gate.admission.running, gate.admission.waiting) == (0, 0)


def test_a_version_keeps_its_slot_for_all_sequences() -> None:
    """Its later sequences count as requests that waited: version 3 is aged, yet version 2 does not drain."""
    gate = Gate(1, max_age_s=1.0)
    gate.enter("a", 1)
    gate.enter("wide", 2, sequences=3)
    gate.enter("c", 3)
    assert gate.leave("a", 1.5) == ("wide", "wide#1", "wide#2")


def test_entering_twice_is_refused() -> None:
    gate = Gate(1)
    gate.enter("a", 1)
    gate.enter("b", 2)
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="already"):
            gate.enter(name, 1)


@pytest.mark.parametrize(
    "admission_request",
    [
        AdmissionRequest("r", "t", 0.0, None, (1,), 1),
        AdmissionRequest("r", "t", float("nan"), None, (1,), 1),
        AdmissionRequest("r", "t", 1.0, None, (-1,), 1),
        AdmissionRequest("r", "t", 1.0, None, (1,), -1),
        AdmissionRequest("r", "t", 1.0, None, (1,), 1, sequences=-1),
        AdmissionRequest("r", "t", 1.0, None, (), 1),
        AdmissionRequest("r", "t", 1.0, None, (1, 1), 1, sequences=3),
        AdmissionRequest("r", "t", 1.0, -1, (1,), 1),
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(admission_request: AdmissionRequest) -> None:
    gate = Gate(1)
    with pytest.raises(ValueError, match="must be"):
        gate.admission.enter(admission_request, 0.0)
    assert gate.admission.snapshot(0.0).tenants == ()


@pytest.mark.parametrize(("slots", "window", "max_age_s"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0)])
def test_impossible_settings_are_refused(slots: int, window: int, max_age_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Admission(slots=slots, window=window, max_age_s=max_age_s)
