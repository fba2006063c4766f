"""Causes that block a batch, as sentences that say when it goes on."""

from datetime import UTC, datetime

import pytest

from adapters.errors import DiskFull, StoreUnavailable
from app.domain.errors import BudgetExceeded, Busy, FileLost, RegistryUnavailable
from app.domain.limits.limiter import RateLimitStatus
from app.services.batches.causes import cause_of

NOON = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
NO_RATE = RateLimitStatus(None, None)


def test_a_budget_says_when_it_returns():
    error = BudgetExceeded("spent", param="tokens_per_day", retry_after=12 * 3600 - 30, rate_limits=NO_RATE)
    cause = cause_of(error, NOON)
    assert cause is not None
    assert cause.code == "tokens_per_day"
    assert cause.message == "The budget tokens_per_day is used up until 2026-03-02 00:00 UTC, or until it is raised."


def test_a_budget_that_no_time_frees_says_so():
    cause = cause_of(BudgetExceeded("small", param="cost_per_month", retry_after=None, rate_limits=NO_RATE), NOON)
    assert cause is not None
    assert cause.code == "cost_per_month"
    assert "raised" in cause.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("s3 says no"), "store_unavailable"),
        (DiskFull("no room"), "disk_full"),
        (FileLost("gone"), "file_lost"),
    ],
)
def test_a_store_in_trouble_is_named_without_its_words(error: Exception, code: str):
    cause = cause_of(error, NOON)
    assert cause is not None
    assert cause.code == code
    assert str(error) not in cause.message


@pytest.mark.parametrize("error", [Busy("busy"), RegistryUnavailable("away"), OSError("odd")])
def test_trouble_that_passes_soon_blocks_nothing(error: Exception):
    assert cause_of(error, NOON) is None
