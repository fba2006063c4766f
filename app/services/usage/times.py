"""Check the times of a report."""

from datetime import datetime, timedelta

from app.domain.errors import InvalidRequest
from app.services.common.validation import checked_time


def checked_times(
    start: datetime | None, end: datetime | None, now: datetime, *, default: timedelta
) -> tuple[datetime, datetime]:
    """Return start and end of a report.

    Args:
        end: last moment; default: now.
        default: time from the start to the end, if no start is given.

    Raises:
        InvalidRequest
    """
    checked_time("from", start, now)
    checked_time("to", end, now)
    end = end or now
    start = start or end - default
    if start >= end:
        raise InvalidRequest(f"from is {start.isoformat()}; it must be before {end.isoformat()}.", param="from")
    return start, end
