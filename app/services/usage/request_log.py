"""Single requests and series of them, for tenants and for the platform: who asked what, how long it took, how it ended.

Records of single requests are kept for the days that the settings allow, hourly totals for ever. No prompt and no
answer is in either.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from adapters.errors import InvalidName
from adapters.identity import parse_model_name
from app.database import request_log
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest
from app.domain.histogram import LatencyHistogram
from app.domain.pages import Page
from app.domain.request_log import LoggedRequest, ModelFilter, Percentiles, RequestFilter, SeriesPoint, SeriesStep
from app.services.common.lookups import tenant_or_404
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    page_of,
    read_cursor,
    read_time_position,
    time_position,
)
from app.services.usage.times import checked_times
from app.services.usage.turns import UsageTurns

#: Most points of a series.
MAX_POINTS = 1500
#: Default time of a list, and of a series by its step.
_LIST = timedelta(days=30)
_SPANS = {
    SeriesStep.MINUTE: timedelta(hours=1),
    SeriesStep.FIVE_MINUTES: timedelta(days=1),
    SeriesStep.HOUR: timedelta(days=7),
    SeriesStep.DAY: timedelta(days=30),
}
_CURSOR = re.compile(r"([1-9][0-9]{0,17}):([0-9A-Za-z_-]{1,32})", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of requests as the caller wrote it; None means any.

    Attributes:
        tenant: slug of the tenant that is charged; None for all, for a platform key only.
        adapter: ``prices``, ``retail/prices``, ``prices@3``, or the name of the base model.
        start, end: half-open interval; by default it ends now.
    """

    tenant: str | None
    start: datetime | None = None
    end: datetime | None = None
    key_id: str | None = None
    adapter: str | None = None
    status: int | None = None
    failed: bool | None = None
    cold: bool | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a series, in order. Steps without a request have no point.

    Attributes:
        start, end: beginning of the first step and end of the last one.
        costs: whether the points have costs.
    """

    start: datetime
    end: datetime
    step: SeriesStep
    points: tuple[SeriesPoint, ...]
    costs: bool


class RequestLogService:
    """Requests of one tenant, or of all.

    Args:
        base_name: name of the base model.

    Raises (every method):
        InvalidRequest, NotFound, Busy, RegistryUnavailable
    """

    def __init__(self, database: Database, turns: UsageTurns, *, base_name: str, clock: Clock = utc_now) -> None:
        self._database, self._turns, self._base_name, self._clock = database, turns, base_name, clock

    async def list(
        self, selection: Selection, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[LoggedRequest]:
        """List requests, the newest first."""
        checked_limit(limit)
        before = _position(read_cursor(cursor, _CURSOR))
        only = await self._filter(selection, default=_LIST)
        async with self._turns.turn(selection.tenant), self._database.read() as connection:
            rows = await request_log.list_requests(connection, only, before=before, limit=limit + 1)
        return page_of(rows, limit, _cursor_of)

    async def series(self, selection: Selection, step: SeriesStep) -> Series:
        """Sum requests by step, with percentiles of their latencies.

        The first and the last step are whole. Totals of hours and days are those of reports. Percentiles cover the
        time for which records of single requests are kept.
        """
        only = await self._filter(selection, default=_SPANS[step])
        first, last = (_step_of(moment, step) for moment in (only.start, only.end - _MICROSECOND))
        if last - first >= MAX_POINTS:
            raise InvalidRequest(
                f"The series has {last - first + 1} steps of {step}; the limit is {MAX_POINTS}. Ask for less time, or "
                "for a longer step.",
                param="step",
            )
        only = _between(only, _start_of(first, step), _start_of(last + 1, step))
        hourly = step.seconds >= SeriesStep.HOUR.seconds
        sums_of, latencies = request_log.sums_of_records, request_log.latencies_of_records
        if hourly:
            sums_of, latencies = request_log.sums_of_hours, request_log.latencies_of_hours
        async with self._turns.turn(selection.tenant), self._database.read() as connection:
            sums = await sums_of(connection, only, step_s=step.seconds)
            found = await latencies(connection, only, step_s=step.seconds)
        points = [
            SeriesPoint(
                _start_of(number, step), used, _percentiles(found.ttft, number), _percentiles(found.duration, number)
            )
            for number, used in sorted(sums.items())
        ]
        return Series(only.start, only.end, step, tuple(points), costs=hourly)

    async def _filter(self, selection: Selection, *, default: timedelta) -> RequestFilter:
        start, end = checked_times(selection.start, selection.end, self._clock(), default=default)
        model = None if selection.adapter is None else self._model(selection.adapter, selection.tenant)
        tenant_id = None
        if selection.tenant is not None:
            async with self._database.read() as connection:
                tenant_id = (await tenant_or_404(connection, selection.tenant)).id
        return RequestFilter(
            start,
            end,
            tenant_id,
            selection.key_id,
            model,
            selection.status,
            selection.failed,
            selection.cold,
        )

    def _model(self, name: str, tenant: str | None) -> ModelFilter:
        if name in {"", self._base_name}:
            return ModelFilter()
        try:
            parsed = parse_model_name(name)
        except InvalidName as error:
            raise _wrong_adapter(name, "ADAPTER or ADAPTER@NUMBER") from error
        if ":" in name:
            raise _wrong_adapter(name, "ADAPTER or ADAPTER@NUMBER, as requests are recorded by version")
        owner = parsed.owner or tenant
        if owner is None:
            raise _wrong_adapter(name, "TENANT/ADAPTER or TENANT/ADAPTER@NUMBER")
        return ModelFilter(owner, parsed.adapter, parsed.number)


def _wrong_adapter(name: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"adapter is {name[:80]!r}; it must be {allowed}.", param="adapter")


def _between(only: RequestFilter, start: datetime, end: datetime) -> RequestFilter:
    return RequestFilter(start, end, only.tenant_id, only.key_id, only.model)


def _step_of(moment: datetime, step: SeriesStep) -> int:
    return (moment - _EPOCH) // timedelta(seconds=step.seconds)


def _start_of(number: int, step: SeriesStep) -> datetime:
    return _EPOCH + timedelta(seconds=number * step.seconds)


def _percentiles(histograms: Mapping[int, LatencyHistogram], number: int) -> Percentiles:
    found = histograms.get(number, LatencyHistogram())
    return Percentiles(*(found.percentile(share) for share in (0.5, 0.95, 0.99)))


def _cursor_of(request: LoggedRequest) -> str:
    return f"{time_position(request.record.at)}:{request.record.request_id}"


def _position(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    position, _, request_id = cursor.partition(":")
    return read_time_position(position), request_id
