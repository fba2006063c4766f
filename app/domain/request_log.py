"""Lists and series of requests, as frozen data. They never have a prompt or an answer."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.usage import UsageRecord, Used


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """The usage record of a request, with names.

    Attributes:
        tenant: slug of the tenant that is charged; None if the tenant is not in the registry.
        adapter: ``tenant/adapter@3``; "" for the base model.
        key_name: owner or name of the key; None for a key of another owner.
    """

    record: UsageRecord
    tenant: str | None
    adapter: str
    key_name: str | None


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """Adapter or version of requests; an empty adapter is the base model."""

    owner: str = ""
    adapter: str = ""
    number: int | None = None


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Filter of requests; None means any.

    Attributes:
        tenant_id: row id of the tenant that is charged.
        start, end: half-open interval of arrival.
        failed: whether the answer is incomplete.
        cold: whether the request waited for its adapter to load.
    """

    start: datetime
    end: datetime
    tenant_id: int | None = None
    key_id: str | None = None
    model: ModelFilter | None = None
    status: int | None = None
    failed: bool | None = None
    cold: bool | None = None


class SeriesStep(StrEnum):
    """Width of the points of a series."""

    MINUTE = "1m"
    FIVE_MINUTES = "5m"
    HOUR = "1h"
    DAY = "1d"

    @property
    def seconds(self) -> int:
        return _SECONDS[self]


_SECONDS = {SeriesStep.MINUTE: 60, SeriesStep.FIVE_MINUTES: 300, SeriesStep.HOUR: 3600, SeriesStep.DAY: 86400}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a latency in seconds: upper edges of histogram buckets; None without a measured request."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Requests of one step.

    Attributes:
        ttft: time to the first token.
        duration: time to the end of complete answers.
    """

    start: datetime
    used: Used
    ttft: Percentiles
    duration: Percentiles
