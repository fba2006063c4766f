"""Deletion barrier: wait for look-ups in flight before the engine unloads a version."""

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from app.services.common.in_flight import InFlightLookups


def test_a_barrier_waits_for_requests_of_its_versions_only() -> None:
    readers = InFlightLookups()
    with ExitStack() as undecided, ExitStack() as mine:
        unknown = undecided.enter_context(readers.reading())
        mine.enter_context(readers.reading()).found(7)
        with readers.reading() as elsewhere, readers.reading() as base:
            elsewhere.found(8)
            base.found(None)
            barrier = readers.barrier({7})
            with readers.reading():  # begins after the barrier, so it can no longer find the version
                mine.close()
                assert not barrier.passed
                unknown.found(8)
                assert barrier.passed


def test_a_reader_that_fails_is_not_waited_for() -> None:
    readers = InFlightLookups()
    stack = ExitStack()
    stack.enter_context(readers.reading()).found(7)
    barrier = readers.barrier({7})
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
def test_it_is_passed_exactly_when_no_reader_may_arrive(
    found: list[int | None], decided: list[bool], wanted: frozenset[int]
) -> None:
    readers = InFlightLookups()
    with ExitStack() as stack:
        waited_for = False
        for version_id, knows in zip(found, decided, strict=False):
            reader = stack.enter_context(readers.reading())
            if knows:
                reader.found(version_id)
            waited_for = waited_for or not knows or version_id in wanted
        barrier = readers.barrier(wanted)
        assert barrier.passed is not waited_for
    assert barrier.passed
