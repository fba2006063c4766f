"""Forecasts of batches: rate, expected end, and lateness."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.batch_forecast import expected_end, is_late, lines_per_s
from app.domain.batches import Batch, BatchOptions, BatchState, BatchUsage, Quote

BEGUN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUNNING = Batch(
    id="batch_1",
    tenant_id=1,
    state=BatchState.IN_PROGRESS,
    endpoint="/v1/completions",
    input_file_id="file",
    output_file_id=None,
    error_file_id=None,
    completion_window="10m",
    options=BatchOptions(),
    metadata=None,
    output_lifetime_s=3600,
    errors=None,
    quote=Quote(100, 0, 0, 0, 120.0),
    blocked=None,
    reason=None,
    total=100,
    completed=15,
    failed=5,
    usage=BatchUsage(),
    node=None,
    leased_until=None,
    created_at=BEGUN,
    created_by="key",
    expires_at=BEGUN + timedelta(minutes=10),
    times={BatchState.IN_PROGRESS: BEGUN},
)


def after(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


def test_the_rest_takes_as_long_as_the_lines_so_far() -> None:
    assert lines_per_s(RUNNING, after(100)) == 0.2
    assert expected_end(RUNNING, after(100)) == after(500)
    assert not is_late(RUNNING, after(100))
    assert is_late(RUNNING, after(151))


def test_before_the_first_result_the_quote_counts() -> None:
    begun = replace(RUNNING, completed=0, failed=0)
    assert lines_per_s(begun, after(10)) is None
    assert expected_end(begun, after(10)) == after(120)
    assert expected_end(begun, after(200)) == after(200)
    unknown = replace(begun, quote=Quote(100, 0, 0, 0, None))
    assert expected_end(unknown, after(10)) is None
    assert not is_late(unknown, after(10))


@pytest.mark.parametrize("state", sorted(set(BatchState) - {BatchState.IN_PROGRESS}))
def test_only_a_batch_in_progress_has_an_expected_end(state: BatchState) -> None:
    assert expected_end(replace(RUNNING, state=state), after(100)) is None


def test_the_rate_of_a_finished_batch_does_not_change() -> None:
    times = {BatchState.IN_PROGRESS: BEGUN, BatchState.FINALIZING: after(40), BatchState.COMPLETED: after(50)}
    ended = replace(RUNNING, state=BatchState.COMPLETED, times=times)
    assert lines_per_s(ended, after(1000)) == lines_per_s(ended, after(2000)) == 0.5


def test_a_batch_that_never_began_has_no_rate() -> None:
    assert lines_per_s(replace(RUNNING, times={}), after(1)) is None
    assert lines_per_s(RUNNING, BEGUN) is None
