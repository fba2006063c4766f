"""Check the times of a report."""

from datetime import UTC, datetime, timedelta

from app.domain.errors import InvalidRequest

_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = timedelta(days=366)


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
    for name, moment in (("from", start), ("to", end)):
        if moment is not None and (moment.tzinfo is None or not _EARLIEST <= moment <= now + _LATEST):
            raise InvalidRequest(
                f"{name} is {moment.isoformat()}; it must be a time with its time zone, from the year 2000 to one year "
                "from now.",
                param=name,
            )
    end = end or now
    start = start or end - default
    if start >= end:
        raise InvalidRequest(f"from is {start.isoformat()}; it must be before {end.isoformat()}.", param="from")
    return start, end
