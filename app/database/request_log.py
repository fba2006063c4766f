"""Usage records of single requests: pages of them, and sums and latency histograms by time."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, case, cast, extract, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import BigInteger, Integer

from app.database.keys import DISPLAY_NAME, is_key_of
from app.database.tables import adapters, keys, tenants, usage, usage_hours, usage_latencies, versions
from app.domain.histogram import EDGES_S, LatencyHistogram
from app.domain.money import UNIT
from app.domain.request_log import LoggedRequest, ModelFilter, RequestFilter
from app.domain.usage import UsageRecord, Used, hour_of

_OWNERS = tenants.alias("owners")
_HOUR_S = 3600
#: Characters of a time in SQLite before its fraction of a second.
_WITHOUT_FRACTION = 19
_COUNTS = ("requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens", "cold_loads")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms by step since 1970: times to the first token, and durations of whole answers."""

    ttft: Mapping[int, LatencyHistogram]
    duration: Mapping[int, LatencyHistogram]


async def list_requests(
    connection: AsyncConnection, only: RequestFilter, *, before: tuple[datetime, str] | None, limit: int
) -> list[LoggedRequest]:
    """List records, the newest first.

    Args:
        before: arrival and id of the last record of the previous page.
    """
    # A tenant sees names of the keys that it owns, and no others.
    named = keys.c.id == usage.c.key_id
    if only.tenant_id is not None:
        named = is_key_of(usage.c.key_id, usage.c.tenant_id)
    shown = (tenants.c.slug.label("charged"), _OWNERS.c.slug.label("owner"), adapters.c.slug.label("adapter"))
    statement = (
        select(usage, *shown, versions.c.number, DISPLAY_NAME.label("key_name"))
        .join_from(usage, tenants, usage.c.tenant_id == tenants.c.id, isouter=True)
        .join(versions, usage.c.version_id == versions.c.id, isouter=True)
        .join(adapters, versions.c.adapter_id == adapters.c.id, isouter=True)
        .join(_OWNERS, adapters.c.tenant_id == _OWNERS.c.id, isouter=True)
        .join(keys, named, isouter=True)
        .where(*_conditions(only))
    )
    if before is not None:
        at, request_id = before
        # The first condition bounds the index.
        statement = statement.where(usage.c.at <= at, (usage.c.at < at) | (usage.c.request_id < request_id))
    statement = statement.order_by(usage.c.at.desc(), usage.c.request_id.desc()).limit(limit)
    return [_logged(row) for row in await connection.execute(statement)]


async def sums_of_records(connection: AsyncConnection, only: RequestFilter, *, step_s: int) -> dict[int, Used]:
    """Sum records by step since 1970. Costs are left out: their decimals cannot be summed in SQL."""
    step = _step_of(connection, step_s).label("step")
    one = literal_column("1", Integer)
    sums = {
        "requests": func.count(),
        "failed": func.sum(case((usage.c.status != 200, one), else_=0)),
        "cold_loads": func.count(usage.c.load_s),
        **{name: func.sum(usage.c[name]) for name in ("prompt_tokens", "cached_tokens", "output_tokens")},
        "load_s": func.coalesce(func.sum(usage.c.load_s), 0.0),
        "slot_s": func.sum(usage.c.slot_s),
    }
    columns = [column.label(name) for name, column in sums.items()]
    statement = _chosen(select(step, *columns), only).group_by("step")
    return {row.step: _used(row) for row in await connection.execute(statement)}


async def sums_of_hours(connection: AsyncConnection, only: RequestFilter, *, step_s: int) -> dict[int, Used]:
    """Sum hourly totals by step since 1970, from the hour of the start to that of the end."""
    names = (*_COUNTS, "load_s", "slot_s", "cost_units", "cost_picos")
    sums = [func.sum(usage_hours.c[name]).label(name) for name in names]
    # The index gives the rows by hour, so that only the few sums of hours are sorted by step.
    hours = _of_hours(select(usage_hours.c.hour, *sums), usage_hours, only).group_by(usage_hours.c.hour).subquery()
    step = _whole(hours.c.hour, step_s // _HOUR_S).label("step")
    columns: list[Any] = [func.sum(hours.c[name]).label(name) for name in names]
    rows = await connection.execute(select(step, *columns).group_by("step"))
    return {row.step: _used(row, cost=int(row.cost_units) * UNIT + int(row.cost_picos)) for row in rows}


async def latencies_of_records(connection: AsyncConnection, only: RequestFilter, *, step_s: int) -> Latencies:
    """Count records by step since 1970 and by latency."""
    step = _step_of(connection, step_s).label("step")
    measured = ((usage.c.ttft_s, usage.c.ttft_s.is_not(None)), (usage.c.duration_s, usage.c.status == 200))
    found = []
    for column, condition in measured:
        columns: list[Any] = [step, _bucket_of(column).label("bucket")]
        inner = _chosen(select(*columns), only).where(condition).subquery()
        statement = select(inner.c.step, inner.c.bucket, func.count()).group_by(inner.c.step, inner.c.bucket)
        found.append(_histograms((await connection.execute(statement)).all()))
    return Latencies(*found)


async def latencies_of_hours(connection: AsyncConnection, only: RequestFilter, *, step_s: int) -> Latencies:
    """Sum hourly latencies by step since 1970, from the hour of the start to that of the end."""
    place = (usage_latencies.c.hour, usage_latencies.c.bucket)
    counts = [func.sum(usage_latencies.c[name]).label(name) for name in ("ttft", "duration")]
    # An index has all of these columns in this order.
    hours = _of_hours(select(*place, *counts), usage_latencies, only).group_by(*place).subquery()
    step = _whole(hours.c.hour, step_s // _HOUR_S).label("step")
    sums: list[Any] = [func.sum(hours.c[name]) for name in ("ttft", "duration")]
    rows = (await connection.execute(select(step, hours.c.bucket, *sums).group_by("step", hours.c.bucket))).all()
    return Latencies(
        _histograms((number, bucket, ttft) for number, bucket, ttft, _ in rows),
        _histograms((number, bucket, duration) for number, bucket, _, duration in rows),
    )


def _histograms(rows: Iterable[Sequence[Any]]) -> dict[int, LatencyHistogram]:
    counts: dict[int, list[int]] = defaultdict(lambda: [0] * (len(EDGES_S) + 1))
    for step, bucket, count in rows:
        counts[step][bucket] = int(count)
    return {step: LatencyHistogram(tuple(found)) for step, found in counts.items()}


def _of_hours(statement: Select[Any], table: Table, only: RequestFilter) -> Select[Any]:
    """Choose rows of a table of hours."""
    conditions = [table.c.hour >= hour_of(only.start), table.c.hour < hour_of(only.end)]
    if only.model is not None:
        conditions.append(_of_model(only.model, table.c.version_id, base=table.c.version_id == 0))
    if only.tenant_id is not None:
        conditions.append(table.c.tenant_id == only.tenant_id)
    if only.key_id is not None:
        conditions.append(table.c.key_id == only.key_id)
    return statement.where(*conditions)


def _conditions(only: RequestFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [usage.c.at >= only.start, usage.c.at < only.end]
    if only.tenant_id is not None:
        conditions.append(usage.c.tenant_id == only.tenant_id)
    if only.key_id is not None:
        conditions.append(usage.c.key_id == only.key_id)
    if only.model is not None:
        conditions.append(_of_model(only.model, usage.c.version_id, base=usage.c.version_id.is_(None)))
    if only.status is not None:
        conditions.append(usage.c.status == only.status)
    if only.failed is not None:
        conditions.append((usage.c.status != 200) if only.failed else (usage.c.status == 200))
    if only.cold is not None:
        conditions.append(usage.c.load_s.is_not(None) if only.cold else usage.c.load_s.is_(None))
    return conditions


def _of_model(model: ModelFilter, version: ColumnElement[Any], *, base: ColumnElement[bool]) -> ColumnElement[bool]:
    if not model.adapter:
        return base
    chosen = (
        select(versions.c.id)
        .join(adapters, versions.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(tenants.c.slug == model.owner, adapters.c.slug == model.adapter)
    )
    if model.number is not None:
        chosen = chosen.where(versions.c.number == model.number)
    return version.in_(chosen)


def _chosen(statement: Select[Any], only: RequestFilter) -> Select[Any]:
    return statement.select_from(usage).where(*_conditions(only))


def _step_of(connection: AsyncConnection, step_s: int) -> ColumnElement[int]:
    """Return the number of the step in which a request arrived, since 1970."""
    seconds: ColumnElement[Any] = func.floor(extract("epoch", usage.c.at))
    if connection.dialect.name == "sqlite":
        # SQLite would round a time in the last half of a millisecond to the next second, so the fraction is cut off.
        seconds = func.strftime("%s", func.substr(usage.c.at, 1, _WITHOUT_FRACTION))
    return _whole(cast(seconds, BigInteger), step_s)


def _whole(value: ColumnElement[int], divisor: int) -> ColumnElement[int]:
    """Divide and round down; both databases divide integers so if none is negative."""
    return value.op("/")(literal_column(str(divisor), Integer))


def _bucket_of(column: ColumnElement[float]) -> ColumnElement[int]:
    """Return the index of a latency's bucket, found by bisection, so that each row takes seven comparisons."""

    def within(low: int, high: int) -> ColumnElement[int]:
        if low == high:
            return literal_column(str(low), Integer)
        middle = (low + high) // 2
        is_low = column <= literal_column(repr(EDGES_S[middle]))
        return case((is_low, within(low, middle)), else_=within(middle + 1, high))

    return within(0, len(EDGES_S))


def _used(row: Row[Any], *, cost: int = 0) -> Used:
    # PostgreSQL returns sums of bigint as Decimal.
    counts = {name: int(getattr(row, name)) for name in _COUNTS}
    return Used(**counts, load_s=float(row.load_s), slot_s=float(row.slot_s), cost=cost)


def _logged(row: Row[Any]) -> LoggedRequest:
    found = row._mapping
    record = UsageRecord(**{name: found[name] for name in UsageRecord.__dataclass_fields__})
    adapter = f"{row.owner}/{row.adapter}@{row.number}" if record.version_id is not None else ""
    return LoggedRequest(record, row.charged, adapter, row.key_name)
