"""Days and months of budgets, in UTC."""

from datetime import UTC, datetime

_DAY_S = 86400


def day_of(at: datetime) -> int:
    return at.astimezone(UTC).toordinal()


def month_of(at: datetime) -> int:
    utc = at.astimezone(UTC)
    return utc.year * 12 + utc.month


def day_left_s(at: datetime) -> float:
    """Return the seconds until the next day begins."""
    utc = at.astimezone(UTC)
    return _DAY_S - (utc.hour * 3600 + utc.minute * 60 + utc.second)


def month_left_s(at: datetime) -> float:
    """Return the seconds until the next month begins."""
    utc = at.astimezone(UTC)
    following = datetime(utc.year + utc.month // 12, utc.month % 12 + 1, 1, tzinfo=UTC)
    return day_left_s(at) + _DAY_S * (following.toordinal() - utc.toordinal() - 1)
