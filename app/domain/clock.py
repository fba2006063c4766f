"""The time of day, as a value that tests replace."""

from collections.abc import Callable
from datetime import UTC, datetime

#: Returns the present moment, with a zone.
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def is_past(moment: datetime | None, now: datetime) -> bool:
    """Whether an end has come; what has no end never ends."""
    return moment is not None and moment <= now
