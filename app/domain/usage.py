"""What requests used of the engine, as plain frozen data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

#: Characters of a finish reason, all that the database keeps.
MAX_REASON = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What one request used. There is one for each that reached the engine, however it ended.

    Attributes:
        at: when the request came.
        tenant_id: who is charged: the caller, also for an adapter that another tenant shares with it.
        version_id: None for the base model.
        prompt_tokens: of all its prompts, each once, whatever its ``n``.
        cached_tokens: those of them that the engine still had.
        output_tokens: of all sequences, as far as they came.
        ttft_s: seconds until the engine had the first token; None if it never had one.
        duration_s: seconds until the answer had ended.
        load_s: seconds that the adapter's cold load took; None if it had a slot.
        finish_reason: as the client saw it, of the sequence that ended last; None if none ended.
        status: 200, the status of the error that ended it (401: its key stopped working), or 499 if the client went
            away.
        cost: of its tokens in picos (see :mod:`app.domain.money`), at the price when it came.
        slot_s: its part of the seconds for which its adapter had a slot; 0 for the base model.
    """

    request_id: str
    at: datetime
    tenant_id: int
    key_id: str
    version_id: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    duration_s: float
    load_s: float | None
    finish_reason: str | None
    status: int
    cost: int = 0
    slot_s: float = 0.0


class Grouping(StrEnum):
    """What totals can be kept apart by."""

    TENANT = "tenant"
    KEY = "key"
    ADAPTER = "adapter"
    VERSION = "version"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Used:
    """Sums over requests.

    Attributes:
        requests: that reached the engine; ``failed`` are those of them without a whole answer.
        cold_loads: requests that waited for a load, and ``load_s`` the seconds that they waited.
        cost: in picos.
        slot_s: seconds of slots; a tenant's requests that ran on one at once share its seconds.
    """

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cold_loads: int = 0
    load_s: float = 0.0
    cost: int = 0
    slot_s: float = 0.0

    @classmethod
    def of(cls, records: Sequence[UsageRecord]) -> "Used":
        return cls(
            requests=len(records),
            failed=sum(record.status != 200 for record in records),
            prompt_tokens=sum(record.prompt_tokens for record in records),
            cached_tokens=sum(record.cached_tokens for record in records),
            output_tokens=sum(record.output_tokens for record in records),
            cold_loads=sum(record.load_s is not None for record in records),
            load_s=sum(record.load_s or 0.0 for record in records),
            cost=sum(record.cost for record in records),
            slot_s=sum(record.slot_s for record in records),
        )

    def __add__(self, other: "Used") -> "Used":
        return Used(
            self.requests + other.requests,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.cold_loads + other.cold_loads,
            self.load_s + other.load_s,
            self.cost + other.cost,
            self.slot_s + other.slot_s,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Sums of one group; what the totals are not kept apart by is None.

    Attributes:
        adapter: ``tenant/adapter``, with ``@3`` where versions are kept apart; the base model has "".
        start: of the hour or day.
    """

    used: Used
    tenant: str | None = None
    key: str | None = None
    adapter: str | None = None
    start: datetime | None = None


def hour_of(moment: datetime) -> int:
    """Hours since 1970 in UTC: both databases divide it to days alike."""
    return (moment - _EPOCH) // _HOUR


def start_of(hour: int) -> datetime:
    """The beginning of an hour."""
    return _EPOCH + hour * _HOUR
