"""Deletion barrier: wait for look-ups in flight before the engine unloads a version."""

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from app.services.common.in_flight import InFlightLookups


def test_a_barrier_waits_for_requests_of_its_versions_only() -> None:
    in_flight = InFlightLookups()
    with ExitStack() as undecided, ExitStack() as mine:
        unknown = undecided.enter_context(in_flight.lookup())
        mine.enter_context(in_flight.lookup()).resolved(7)
        with in_flight.lookup() as elsewhere, in_flight.lookup() as base:
            elsewhere.resolved(8)
            base.resolved(None)
            barrier = in_flight.barrier({7})
            with in_flight.lookup():  # begins after the barrier, so it can no longer find the version
                mine.close()
                assert not barrier.passed
                unknown.resolved(8)
                assert barrier.passed


def test_a_lookup_that_fails_is_not_waited_for() -> None:
    in_flight = InFlightLookups()
    stack = ExitStack()
    stack.enter_context(in_flight.lookup()).resolved(7)
    barrier = in_flight.barrier({7})
    assert not barrier.passed
    error = RuntimeError("on the way")
    assert not stack.__exit__(type(error), error, None)
    assert barrier.passed


def test_nobody_there_is_passed_at_once() -> None:
    assert InFlightLookups().barrier({1, 2}).passed


@given(
    found=st.lists(st.sampled_from([None, 1, 2, 3]), max_size=8),
    decided=st.lists(st.booleans(), max_size=8),
    wanted=st.frozensets(st.integers(1, 3)),
)
def test_it_is_passed_exactly_when_no_lookup_may_arrive(
    found: list[int | None], decided: list[bool], wanted: frozenset[int]
) -> None:
    in_flight = InFlightLookups()
    with ExitStack() as stack:
        waited_for = False
        for version_id, knows in zip(found, decided, strict=False):
            lookup = stack.enter_context(in_flight.lookup())
            if knows:
                lookup.resolved(version_id)
            waited_for = waited_for or not knows or version_id in wanted
        barrier = in_flight.barrier(wanted)
        assert barrier.passed is not waited_for
    assert barrier.passed
