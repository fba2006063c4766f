"""Wall clock as an injectable value."""

from collections.abc import Callable
from datetime import UTC, datetime

#: Returns the current time as an aware datetime.
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def is_past(moment: datetime | None, now: datetime) -> bool:
    """Return whether a deadline has passed; None is no deadline."""
    return moment is not None and moment <= now
