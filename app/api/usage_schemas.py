"""JSON schemas and CSV of usage reports."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field

from app.domain.money import amount_text
from app.domain.usage import Group, Grouping, Used
from app.services.usage.usage import Report

_SUMS = tuple(field.name for field in fields(Used))


class UsageTotalsOut(BaseModel):
    requests: int = Field(description="Requests that reached the engine, successful or not")
    failed: int = Field(description="Requests of these without a whole answer")
    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens from the engine's cache")
    output_tokens: int
    cold_loads: int = Field(description="Requests that waited for their adapter to load")
    load_s: float = Field(description="Seconds that these requests waited for it")
    cost: str = Field(description="Cost as a decimal, at the prices when the requests arrived")
    slot_s: float = Field(
        description="Seconds of LoRA slots. Simultaneous requests of the tenant for one adapter share them."
    )

    @classmethod
    def of(cls, used: Used) -> Self:
        return cls(**_figures(used))


class UsageGroupOut(UsageTotalsOut):
    tenant: str | None = Field(None, description="Slug of the tenant, if grouped by tenant")
    key: str | None = Field(None, description="Id of the key, if grouped by key")
    adapter: str | None = Field(
        None,
        description="`tenant/adapter` or `tenant/adapter@3`, if grouped by one of them; empty for the base model",
    )
    start: datetime | None = Field(None, description="Start of the hour or day (UTC), if grouped by it")

    @classmethod
    def of_group(cls, group: Group) -> Self:
        return cls(**_figures(group.used), tenant=group.tenant, key=group.key, adapter=group.adapter, start=group.start)


class UsageReportOut(BaseModel):
    """Totals over whole hours. Requests that ended less than a second ago may be missing."""

    start: datetime = Field(description="Start of the first hour")
    end: datetime = Field(description="End of the last hour")
    data: list[UsageGroupOut]
    total: UsageTotalsOut
    currency: str = Field(description="Currency of the costs")

    @classmethod
    def of(cls, report: Report) -> Self:
        return cls(
            start=report.start,
            end=report.end,
            data=[UsageGroupOut.of_group(group) for group in report.groups],
            total=UsageTotalsOut.of(report.total),
            currency=report.currency,
        )


def csv_of(report: Report, by: Sequence[Grouping]) -> str:
    """Format the groups as CSV with a header row.

    Names need no escaping against formula injection: slugs begin with a letter or a digit.
    """
    names = {Grouping.VERSION: "adapter", Grouping.HOUR: "start", Grouping.DAY: "start"}
    columns = [names.get(grouping, grouping.value) for grouping in by]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*columns, *_SUMS, "currency"])
    for group in report.groups:
        keys = [_shown(getattr(group, column)) for column in columns]
        writer.writerow([*keys, *_figures(group.used).values(), report.currency])
    return text.getvalue()


def _figures(used: Used) -> dict[str, Any]:
    return asdict(used) | {"cost": amount_text(used.cost)}


def _shown(value: str | datetime | None) -> str:
    return value.isoformat() if isinstance(value, datetime) else value or ""
