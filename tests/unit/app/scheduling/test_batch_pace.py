"""Pace of batches: refusals lower it, ends of lines raise it, and lines leave room for other requests."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.batch_pace import LEAST_S, MOST_S, SHARED_S, BatchPace, most_lines

STEP_S = 0.01


def test_without_refusals_only_the_width_bounds_it():
    assert BatchPace(None).room(500, 0.0) > 1000
    assert BatchPace(8).room(5, 0.0) == 3
    assert BatchPace(8).room(9, 0.0) == 0


def test_a_refusal_stops_at_the_lines_in_flight_until_one_ends():
    pace = BatchPace(None)
    pace.refused(4, 10.0)
    assert pace.room(4, 10.0) == 0
    assert pace.room(4, 60.0) == 0
    pace.ended()
    assert pace.room(3, 10.0) == 2


def test_with_nothing_in_flight_one_line_is_tried_after_a_pause():
    pace, now = BatchPace(None), 0.0
    pauses = []
    for _ in range(12):
        pace.refused(0, now)
        assert pace.room(0, now) == 0
        began = now
        while not pace.room(0, now):
            now += STEP_S
        assert pace.room(0, now) == 1
        pauses.append(now - began)
    assert all(longer > shorter - STEP_S for shorter, longer in pairwise(pauses))
    assert LEAST_S <= pauses[0] < 2 * LEAST_S
    assert MOST_S <= pauses[-1] < MOST_S + 0.1
    pace.ended()
    pace.refused(0, now)
    assert pace.room(0, now + LEAST_S) == 1


def test_refusals_of_one_moment_are_one():
    one, many = BatchPace(None), BatchPace(None)
    one.refused(0, 0.0)
    for _ in range(50):
        many.refused(0, 0.0)
    assert many.room(0, LEAST_S) == one.room(0, LEAST_S) == 1


@given(
    st.none() | st.integers(1, 50),
    st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.floats(0, 3)), max_size=60),
)
def test_it_keeps_the_width_and_always_goes_on(width, events):
    pace, now = BatchPace(width), 0.0
    for ended, in_flight, later_s in events:
        now += later_s
        if ended:
            pace.ended()
        else:
            pace.refused(in_flight, now)
        if width is not None:
            assert in_flight + pace.room(in_flight, now) <= max(width, in_flight)
    assert pace.room(0, now + MOST_S) >= 1


@given(st.integers(1, 4096), st.floats(0.001, 1), st.floats(0, 100))
def test_lines_leave_a_part_of_the_window_to_others(window, share, idle_s):
    most = most_lines(window, share=share, idle_s=idle_s)
    assert 1 <= most <= window
    assert most == window if idle_s >= SHARED_S else most <= max(1, window * share)


def test_without_other_requests_lines_get_the_whole_window():
    assert most_lines(64, share=0.5, idle_s=float("inf")) == 64
    assert most_lines(64, share=0.5, idle_s=0.0) == 32
    assert most_lines(1, share=0.5, idle_s=0.0) == 1
