import pytest

from app.lab.bench.open_loop import Sample
from app.lab.bench.waits import longest, of_bound


def answered(sent: float, first: float, end: float | None = None) -> Sample:
    return Sample(sent=sent, first=first, end=first if end is None else end)


def test_an_adapter_waits_while_no_request_has_begun() -> None:
    served = [answered(0, 1), answered(0, 3), answered(0, 4), answered(9, 10)]
    # Requests begin at 1, 3 and 4; then there is no request until one that begins at 10.
    assert longest([(sample, "a") for sample in served]) == 2
    # The begin of one adapter's request does not end the wait of another.
    assert longest(zip(served, "abaa", strict=True)) == 3
    failed = Sample(sent=5.0, end=8.5, why="no answer before the end of the run")
    assert longest([(sample, "a") for sample in [*served, failed]]) == 3.5
    assert longest([]) == 0


def test_the_bound_grows_with_waiters_and_shrinks_with_slots() -> None:
    """With a maximum age of 1 s and answers of 3 s, the bound is 4 s per round of slots."""
    sent = [(answered(0, 0, 3), "a"), (answered(1, 4, 7), "b"), (answered(2, 8, 11), "c")]
    # The worst is c, which came while b waited: it waits 6 s of two rounds, or of one round with two slots.
    assert of_bound(sent, 1, 1.0) == pytest.approx(6 / 8)
    assert of_bound(sent, 2, 1.0) == pytest.approx(6 / 4)


def test_who_is_served_already_is_nobody_to_wait_for() -> None:
    sent = [(answered(0, 0.5, 3), "a"), (answered(1, 4, 4), "b")]
    assert of_bound(sent, 1, 1.0) == pytest.approx(3 / 3.5)


def test_without_requests_nothing_is_broken() -> None:
    assert of_bound([], 4, 0.5) == 0
    assert of_bound([(Sample(), "a")], 4, 0.5) == 0
