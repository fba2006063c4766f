import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.cache.failures import Failures
from adapters.errors import BlobNotFound, DigestMismatch, StorageError, StoreUnavailable

_VERSIONS = tuple(f"{number}@a" for number in range(21))


def pause(failures: Failures, now: float, version: str = "1@a") -> int | None:
    """Return the whole seconds for which a version is refused; None if it may be tried."""
    try:
        failures.check(version, now)
    except StorageError as error:
        return error.retry_after
    return None


def test_backoff_doubles_and_resets_after_a_quiet_time() -> None:
    failures, now, pauses = Failures(), 100.0, []
    for _ in range(6):
        failures.note("1@a", StoreUnavailable("no answer"), now)
        pauses.append(pause(failures, now))
        now += pauses[-1] or 0
        assert pause(failures, now) is None
    assert pauses == [2, 4, 8, 16, 30, 30]
    failures.note("1@a", StoreUnavailable("no answer"), now + 31)
    assert pause(failures, now + 31) == 2


@pytest.mark.parametrize("kind", [BlobNotFound, DigestMismatch, StoreUnavailable])
def test_the_refusal_is_the_error_of_then_with_the_seconds_left(kind: type[StorageError]) -> None:
    failures, error = Failures(), kind("what happened")
    failures.note("1@a", error, 10.0)
    assert error.retry_after == 2
    with pytest.raises(kind, match="what happened") as caught:
        failures.check("1@a", 11.5)
    assert caught.value.retry_after == 1
    assert caught.value is not error


def test_forgetting_ends_the_pause_and_the_doubling() -> None:
    failures = Failures()
    failures.note("1@a", BlobNotFound("none"), 0.0)
    failures.forget("1@a")
    failures.forget("1@a")
    assert pause(failures, 0.0) is None
    failures.note("1@a", BlobNotFound("none"), 1.0)
    assert pause(failures, 1.0) == 2


def test_other_bytes_under_the_same_id_have_done_nothing_wrong() -> None:
    failures = Failures()
    failures.note("1@a", BlobNotFound("none"), 0.0)
    assert pause(failures, 0.0, "1@b") is None


@given(st.lists(st.tuples(st.sampled_from(_VERSIONS), st.floats(0, 50)), max_size=60))
def test_memory_is_bounded_and_pauses_are_half_a_minute(steps: list[tuple[str, float]]) -> None:
    failures, now, noted = Failures(most=5), 0.0, list[str]()
    for version, passed in steps:
        now += passed
        failures.note(version, BlobNotFound("none"), now)
        noted.append(version)
    pauses = [left for version in _VERSIONS if (left := pause(failures, now, version))]
    assert len(pauses) <= 5
    assert all(0 < left <= 30 for left in pauses)
    # The latest failure is always kept.
    assert all(pause(failures, now, version) for version in noted[-1:])
