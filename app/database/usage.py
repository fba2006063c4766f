"""Usage records of requests, each written once, with their hourly totals and latencies."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Label, Select, String, Subquery, case, cast, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import adapters, tenants, usage, usage_hours, usage_latencies, versions
from app.domain.histogram import bucket_of
from app.domain.limits.account import PeriodTotals
from app.domain.limits.limiter import Subject, subjects_of
from app.domain.money import UNIT
from app.domain.usage import Group, Grouping, UsageRecord, Used, hour_of, start_of

_COLUMNS = tuple(field.name for field in fields(UsageRecord))
_SUMS = tuple(field.name for field in fields(Used) if field.name != "cost")
_STORED_SUMS = (*_SUMS, "cost_units", "cost_picos")
_SECONDS = ("load_s", "slot_s")
_HOUR_KEY = ("hour", "tenant_id", "key_id", "version_id")
_LATENCY_KEY = (*_HOUR_KEY, "bucket")
_DAY_HOURS = 24
#: Status of a request with a whole answer.
_WHOLE = 200
#: Rows per INSERT statement. See docs/decisions/0036-statements-for-usage-records.md.
_ROWS_AT_ONCE = 32
_OWNERS = tenants.alias("owners")
_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


async def add(connection: AsyncConnection, records: Collection[UsageRecord]) -> list[UsageRecord]:
    """Write records and add them to the hourly totals and latencies; idempotent per request.

    Returns:
        The records that were new.
    """
    by_id = {record.request_id: record for record in records}
    if not by_id:
        return []
    # Sorted, here and below, so that two servers that write the same rows cannot deadlock.
    rows = [_row(by_id[request_id]) for request_id in sorted(by_id)]
    inserted = await connection.execute(_inserting(connection.dialect.name), rows)
    new = [by_id[request_id] for request_id in inserted.scalars()]
    await _add_to_hours(connection, new)
    await _add_latencies(connection, new)
    return new


async def totals(
    connection: AsyncConnection, *, tenant_id: int | None, hours: range, by: Sequence[Grouping], limit: int
) -> list[Group]:
    """Sum usage over a range of hours since 1970, sorted by group.

    Args:
        tenant_id: only this tenant; None for all.
        hours: hours since 1970.
        by: dimensions to group by.
        limit: maximum number of groups.
    """
    conditions = [usage_hours.c.hour >= hours.start, usage_hours.c.hour < hours.stop]
    if tenant_id is not None:
        conditions.append(usage_hours.c.tenant_id == tenant_id)
    statement = _named_sums(_sums_by_ids(by, conditions), by)
    result = await connection.execute(statement.limit(limit))
    # Without GROUP BY, SQL returns one row for an empty table.
    return [_group(row) for row in result.mappings() if row["requests"]]


async def month_totals(
    connection: AsyncConnection, at: datetime, subject: Subject | None = None
) -> list[tuple[tuple[Subject, ...], PeriodTotals]]:
    """Sum usage of the UTC day and month of a moment, for each combination of tenant, key and adapter.

    Args:
        at: the moment.
        subject: only combinations with this subject; None for all.
    """
    hour = hour_of(at)
    day, month = hour - hour % _DAY_HOURS, hour_of(at.astimezone(UTC).replace(day=1, hour=0))
    today = usage_hours.c.hour >= day
    tokens = usage_hours.c.prompt_tokens + usage_hours.c.output_tokens
    summed = [
        func.sum(term)
        for column in (tokens, usage_hours.c.cost_units, usage_hours.c.cost_picos)
        for term in (case((today, column), else_=0), column)
    ]
    subjects = {"tenant": usage_hours.c.tenant_id, "key": usage_hours.c.key_id, "adapter": versions.c.adapter_id}
    statement = (
        select(*subjects.values(), *summed)
        .join_from(usage_hours, versions, usage_hours.c.version_id == versions.c.id, isouter=True)
        .where(usage_hours.c.hour >= month)
        .group_by(*subjects.values())
    )
    if subject is not None:
        kind, identity = subject
        statement = statement.where(subjects[kind] == (identity if kind == "key" else int(identity)))
    return [(subjects_of(*row[:3]), _month_sums(*row[3:])) for row in await connection.execute(statement)]


async def records_since(
    connection: AsyncConnection, at: datetime, *, seconds: float
) -> list[tuple[UsageRecord, int | None]]:
    """List the records of requests that arrived in the seconds before a moment, in order of arrival.

    Each has the id of its adapter; None for the base model.
    """
    statement = (
        select(versions.c.adapter_id, usage)
        .join_from(usage, versions, usage.c.version_id == versions.c.id, isouter=True)
        .where(usage.c.at >= at - timedelta(seconds=seconds))
        .order_by(usage.c.at)
    )
    rows = (dict(row) for row in (await connection.execute(statement)).mappings())
    return [(UsageRecord(**row), adapter_id) for row in rows for adapter_id in [row.pop("adapter_id")]]


async def used_by(connection: AsyncConnection, request_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return tokens and cost of those requests that have a record."""
    tokens = usage.c.prompt_tokens + usage.c.output_tokens
    statement = select(usage.c.request_id, tokens, usage.c.cost).where(usage.c.request_id.in_(request_ids))
    return {request_id: (count, cost) for request_id, count, cost in await connection.execute(statement)}


async def forget(connection: AsyncConnection, before: datetime, *, limit: int) -> int:
    """Delete records of requests from before a moment, up to ``limit``; hourly totals stay. Return their number."""
    old = select(usage.c.request_id).where(usage.c.at < before).order_by(usage.c.at).limit(limit)
    return (await connection.execute(delete(usage).where(usage.c.request_id.in_(old)))).rowcount


async def forget_latencies(connection: AsyncConnection, before: datetime, *, limit: int) -> int:
    """Delete the latencies of whole hours before a moment, up to ``limit`` rows. Return their number."""
    key = [usage_latencies.c[name] for name in _LATENCY_KEY]
    hour = usage_latencies.c.hour
    old = select(*key).where(hour < hour_of(before)).order_by(hour).limit(limit)
    return (await connection.execute(delete(usage_latencies).where(tuple_(*key).in_(old)))).rowcount


async def _add_latencies(connection: AsyncConnection, records: Collection[UsageRecord]) -> None:
    counts: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        place = (hour_of(record.at), record.tenant_id, record.key_id, record.version_id or 0)
        if record.ttft_s is not None:
            counts[*place, bucket_of(record.ttft_s)][0] += 1
        if record.status == _WHOLE:
            counts[*place, bucket_of(record.duration_s)][1] += 1
    if not counts:
        return
    names = (*_LATENCY_KEY, "ttft", "duration")
    rows = [dict(zip(names, (*key, *found), strict=True)) for key, found in sorted(counts.items())]
    await connection.execute(_adding_latencies(connection.dialect.name), rows)


async def _add_to_hours(connection: AsyncConnection, records: Collection[UsageRecord]) -> None:
    groups: dict[tuple[Any, ...], list[UsageRecord]] = defaultdict(list)
    for record in records:
        groups[hour_of(record.at), record.tenant_id, record.key_id, record.version_id or 0].append(record)
    if not groups:
        return
    rows = [dict(zip(_HOUR_KEY, key, strict=True)) | _hour_row(Used.of(group)) for key, group in sorted(groups.items())]
    await connection.execute(_adding_to_hours(connection.dialect.name), rows)


# Cached, because building a statement is slow. See docs/decisions/0036-statements-for-usage-records.md.
@cache
def _inserting(dialect: str) -> Any:
    statement = _INSERTS[dialect](usage).on_conflict_do_nothing().returning(usage.c.request_id)
    return statement.execution_options(insertmanyvalues_page_size=_ROWS_AT_ONCE)


@cache
def _adding_to_hours(dialect: str) -> Any:
    statement = _INSERTS[dialect](usage_hours)
    added = {name: usage_hours.c[name] + statement.excluded[name] for name in _SUMS}
    picos = usage_hours.c.cost_picos + statement.excluded.cost_picos
    units = usage_hours.c.cost_units + statement.excluded.cost_units
    added |= {"cost_units": units + picos // UNIT, "cost_picos": picos % UNIT}
    return statement.on_conflict_do_update(index_elements=_HOUR_KEY, set_=added)


@cache
def _adding_latencies(dialect: str) -> Any:
    statement = _INSERTS[dialect](usage_latencies)
    added = {name: usage_latencies.c[name] + statement.excluded[name] for name in ("ttft", "duration")}
    return statement.on_conflict_do_update(index_elements=_LATENCY_KEY, set_=added)


def _row(record: UsageRecord) -> dict[str, Any]:
    # asdict() would copy every value. See docs/decisions/0036-statements-for-usage-records.md.
    return {name: getattr(record, name) for name in _COLUMNS}


def _hour_row(used: Used) -> dict[str, Any]:
    units, picos = divmod(used.cost, UNIT)
    return {name: getattr(used, name) for name in _SUMS} | {"cost_units": units, "cost_picos": picos}


def _month_sums(
    tokens_of_day: int, tokens: int, units_of_day: int, units: int, picos_of_day: int, picos: int
) -> PeriodTotals:
    # PostgreSQL returns sums of bigint as Decimal.
    return PeriodTotals(
        int(tokens_of_day), int(tokens), int(units_of_day) * UNIT + int(picos_of_day), int(units) * UNIT + int(picos)
    )


def _sums_by_ids(by: Sequence[Grouping], conditions: Sequence[ColumnElement[bool]]) -> Subquery:
    """Sum hourly totals by the ids behind the groups, before they are joined with names."""
    ids: list[ColumnElement[Any]] = [usage_hours.c.tenant_id]
    if Grouping.KEY in by:
        ids.append(usage_hours.c.key_id)
    if not {Grouping.ADAPTER, Grouping.VERSION}.isdisjoint(by):
        ids.append(usage_hours.c.version_id)
    if Grouping.HOUR in by:
        ids.append(usage_hours.c.hour.label("start"))
    elif Grouping.DAY in by:
        ids.append((usage_hours.c.hour - usage_hours.c.hour % _DAY_HOURS).label("start"))
    sums = [func.sum(usage_hours.c[name]).label(name) for name in _STORED_SUMS]
    return select(*ids, *sums).where(*conditions).group_by(*ids).subquery()


def _named_sums(sums: Subquery, by: Sequence[Grouping]) -> Select[Any]:
    """Sum sums by ids to the groups with their names, sorted by these."""
    adapter = _OWNERS.c.slug + "/" + adapters.c.slug
    columns: list[Label[Any]] = []
    source = sums.join(tenants, sums.c.tenant_id == tenants.c.id)
    if "version_id" in sums.c:
        source = (
            source.join(versions, sums.c.version_id == versions.c.id, isouter=True)
            .join(adapters, versions.c.adapter_id == adapters.c.id, isouter=True)
            .join(_OWNERS, adapters.c.tenant_id == _OWNERS.c.id, isouter=True)
        )
    for grouping in by:
        match grouping:
            case Grouping.TENANT:
                columns.append(tenants.c.slug.label("tenant"))
            case Grouping.KEY:
                columns.append(sums.c.key_id.label("key"))
            case Grouping.ADAPTER:
                columns.append(func.coalesce(adapter, "").label("adapter"))
            case Grouping.VERSION:
                version = adapter + "@" + cast(versions.c.number, String)
                columns.append(func.coalesce(version, "").label("adapter"))
            case Grouping.HOUR | Grouping.DAY:
                columns.append(sums.c.start.label("start"))
    totals = [func.sum(sums.c[name]).label(name) for name in _STORED_SUMS]
    return select(*columns, *totals).select_from(source).group_by(*columns).order_by(*columns)


def _group(row: Mapping[str, Any]) -> Group:
    # PostgreSQL returns sums of bigint as Decimal.
    sums: dict[str, Any] = {name: (float if name in _SECONDS else int)(row[name]) for name in _SUMS}
    cost = int(row["cost_units"]) * UNIT + int(row["cost_picos"])
    used = Used(**sums, cost=cost)
    start = row.get("start")
    return Group(
        used,
        tenant=row.get("tenant"),
        key=row.get("key"),
        adapter=row.get("adapter"),
        start=None if start is None else start_of(start),
    )
