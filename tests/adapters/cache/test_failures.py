import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.failures import Failures
from adapters.errors import BlobNotFound, DigestMismatch, StorageError, StoreUnavailable


def pause(failures: Failures, now: float, version_id: int = 1) -> int | None:
    """Whole seconds that a version is refused for; None: it may be tried."""
    try:
        failures.check(version_id, now)
    except StorageError as error:
        return error.retry_after
    return None


def test_pauses_double_while_failure_follows_failure_and_begin_anew_after_a_quiet_time() -> None:
    failures, now, pauses = Failures(), 100.0, []
    for _ in range(6):
        failures.note(1, StoreUnavailable("no answer"), now)
        pauses.append(pause(failures, now))
        now += pauses[-1] or 0
        assert pause(failures, now) is None
    assert pauses == [2, 4, 8, 16, 30, 30]
    failures.note(1, StoreUnavailable("no answer"), now + 31)
    assert pause(failures, now + 31) == 2


@pytest.mark.parametrize("kind", [BlobNotFound, DigestMismatch, StoreUnavailable])
def test_the_refusal_is_the_error_of_then_with_the_seconds_left(kind: type[StorageError]) -> None:
    failures, error = Failures(), kind("what happened")
    failures.note(1, error, 10.0)
    assert error.retry_after == 2
    with pytest.raises(kind, match="what happened") as caught:
        failures.check(1, 11.5)
    assert caught.value.retry_after == 1
    assert caught.value is not error


def test_forgetting_ends_the_pause_and_the_doubling() -> None:
    failures = Failures()
    failures.note(1, BlobNotFound("none"), 0.0)
    failures.forget(1)
    failures.forget(1)
    assert pause(failures, 0.0) is None
    failures.note(1, BlobNotFound("none"), 1.0)
    assert pause(failures, 1.0) == 2


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 50)), max_size=60))
def test_memory_is_bounded_and_no_pause_longer_than_half_a_minute(steps: list[tuple[int, float]]) -> None:
    failures, now, noted = Failures(most=5), 0.0, list[int]()
    for version_id, passed in steps:
        now += passed
        failures.note(version_id, BlobNotFound("none"), now)
        noted.append(version_id)
    pauses = [left for version_id in range(21) if (left := pause(failures, now, version_id))]
    assert len(pauses) <= 5
    assert all(0 < left <= 30 for left in pauses)
    # The latest is always among them.
    assert all(pause(failures, now, version_id) for version_id in noted[-1:])
