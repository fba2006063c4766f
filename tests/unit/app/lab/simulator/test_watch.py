"""Waits compared with their bounds, and the longest drain in an interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.simulator.watch import Longest, Watch


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100)), max_size=40), st.floats(-1, 210))
def test_the_longest_since_a_time(steps: list[tuple[float, float]], since: float) -> None:
    longest, now, all_of_them = Longest(), 0.0, []
    for gap, seconds in steps:
        now += gap
        longest.add(now, seconds)
        all_of_them.append((now, seconds))
    assert longest.since(since) == max((seconds for ended, seconds in all_of_them if ended >= since), default=0.0)


def test_a_wait_within_its_bound() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 0.0)
    watch.waits(2, 1.0, available=True)
    watch.joined(1, 3.0)
    watch.left(1, 3.0, None)
    watch.left(1, 4.5, None)
    watch.joined(2, 4.5)
    assert watch.violated == 0
    assert watch.longest is not None
    assert (watch.longest.seconds, watch.longest.rounds, watch.longest.drain_s, watch.longest.bound_s) == (
        3.5,
        1,
        1.5,
        3.5,
    )


def test_a_wait_beyond_its_bound_is_a_violation() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 0.0)
    watch.waits(2, 1.0, available=True)
    watch.joined(1, 4.0)
    watch.left(1, 4.5, None)
    watch.left(1, 4.7, None)
    watch.joined(2, 4.7)
    assert watch.violated == 1
    assert watch.violations[0].version_id == 2
    assert watch.violations[0].seconds == pytest.approx(3.7)
    assert watch.violations[0].bound_s == pytest.approx(2.7)


def test_only_earlier_waiters_count() -> None:
    watch = Watch(slots=2, max_age_s=2.0)
    for version in (1, 2):
        watch.joined(version, 0.0)
    for version in (3, 4, 5, 6):
        watch.waits(version, 0.0, available=True)
    watch.gave_up(3, None)
    watch.waits(7, 1.0, available=True)
    watch.left(1, 1.5, None)
    watch.joined(7, 1.5)
    assert watch.longest is not None
    # Versions 4, 5, 6 and the version itself share two slots.
    assert watch.longest.rounds == 2


def test_the_time_of_a_load_is_no_wait_for_a_slot() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.waits(1, 0.0, available=False)
    watch.available(1, 50.0)
    watch.unavailable(1)
    watch.available(1, 100.0)
    watch.joined(1, 101.0)
    assert watch.longest is not None
    assert watch.longest.seconds == pytest.approx(1.0)


def test_a_version_that_lost_its_slot_waits_from_then() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 1.0)
    watch.waits(1, 3.0, available=True)
    watch.joined(1, 6.0)
    watch.left(1, 7.0, 3.0)
    watch.left(1, 8.0, 3.0)
    watch.joined(1, 9.0)
    assert watch.judged == 1
    assert watch.longest is not None
    assert watch.longest.seconds == pytest.approx(1.0)


def test_a_drained_version_precedes_later_arrivals() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 0.0)
    watch.waits(2, 1.0, available=True)
    watch.waits(1, 3.0, available=True)
    watch.waits(3, 4.0, available=True)
    watch.left(1, 5.0, 3.0)
    for version in (2, 1, 3):
        watch.joined(version, 6.0)
        watch.left(version, 7.0, None)
    assert watch.longest is not None
    assert (watch.longest.version_id, watch.longest.rounds) == (2, 1)
    assert watch.closest is not None
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 0.0)
    watch.waits(1, 3.0, available=True)
    watch.waits(3, 4.0, available=True)
    watch.left(1, 5.0, 3.0)
    watch.joined(3, 60.0)
    assert watch.violations[0].rounds == 2


def test_a_version_waits_by_its_oldest_remaining_request() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.joined(1, 0.0)
    watch.waits(2, 1.0, available=True)
    watch.waits(3, 2.0, available=True)
    watch.gave_up(2, 3.0)
    watch.joined(2, 60.0)
    assert watch.violations[0].since == pytest.approx(3.0)
    assert watch.violations[0].rounds == 2


def test_the_time_of_a_full_window_is_counted_apart() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    watch.waits(1, 0.0, available=True)
    watch.waits(2, 0.0, available=True)
    watch.window(1.0, full=True)
    watch.window(2.0, full=True)
    watch.window(4.0, full=False)
    watch.window(5.0, full=False)
    watch.window(6.0, full=True)
    watch.joined(1, 7.0)
    watch.left(1, 7.0, None)
    assert (watch.violated, watch.delayed) == (1, 0)
    assert watch.violations[0].full_s == pytest.approx(4.0)
    watch.window(10.0, full=False)
    watch.joined(2, 10.5)
    assert (watch.violated, watch.delayed) == (1, 1)


def test_who_came_later_but_could_be_copied_sooner_waited_before() -> None:
    watch = Watch(slots=1, max_age_s=2.0)
    for version in (1, 2, 3, 4):
        watch.waits(version, float(version), available=version == 4)
    watch.available(2, 5.0)
    watch.unavailable(4)
    watch.available(3, 5.0)
    watch.joined(2, 90.0)
    watch.left(2, 90.0, None)
    watch.joined(3, 90.0)
    # Ahead of version 2 were 4 (it could be copied) and 1 (it came earlier). Ahead of version 3 were 2 and 1.
    assert [wait.rounds for wait in watch.violations] == [3, 3]
