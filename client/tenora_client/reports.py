"""Queries of reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def usage_query(
    by: str | Sequence[str] | None, start: datetime | str | None, end: datetime | str | None, tenant: str | None
) -> dict[str, str]:
    """Build the query of a usage report.

    Raises:
        ValueError: a time has no zone.
    """
    groups = by if by is None or isinstance(by, str) else ",".join(by)
    return report_query(start, end, by=groups, tenant=tenant)


def report_query(
    start: datetime | str | None, end: datetime | str | None, **filters: str | int | bool | None
) -> dict[str, str]:
    """Build the query of a report about a time.

    Args:
        filters: other parameters; None: absent.

    Raises:
        ValueError: a time has no zone.
    """
    query = {"from": _time(start), "to": _time(end), **filters}
    return {name: _text(value) for name, value in query.items() if value is not None}


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(value: datetime | str | None) -> str | None:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone. Write one such as datetime(2026, 11, 1, tzinfo=timezone.utc).")
    return value.isoformat()
