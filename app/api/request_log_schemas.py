"""JSON schemas of single requests and of usage by time."""

from datetime import datetime

from pydantic import BaseModel, Field

from app.domain.money import amount_text
from app.domain.request_log import LoggedRequest, Percentiles, SeriesPoint, SeriesStep
from app.services.usage.request_log import Series


class RequestOut(BaseModel):
    """A request that reached the engine. Its prompt and its answer are stored nowhere."""

    id: str = Field(description="The request's `x-request-id`")
    at: datetime = Field(description="Time of arrival")
    tenant: str | None = Field(description="Slug of the tenant that is charged")
    key: str = Field(description="Id of the key")
    key_name: str | None = Field(description="Owner of the key, or else its name")
    adapter: str = Field(description="`tenant/adapter@3`; empty for the base model")
    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens from the engine's cache")
    output_tokens: int
    ttft_s: float | None = Field(description="Seconds to the first token in the engine; null: there was none")
    duration_s: float = Field(description="Seconds to the end of the answer")
    load_s: float | None = Field(description="Seconds that it waited for its adapter to load; null: not at all")
    slot_s: float = Field(description="Its part of the seconds for which the adapter had a slot")
    finish_reason: str | None
    status: int = Field(description="200, the status of the error that ended it, or 499 if the client disconnected")
    cost: str = Field(description="Cost as a decimal, at the prices of its arrival")

    @classmethod
    def of(cls, request: LoggedRequest) -> "RequestOut":
        record = request.record
        return cls(
            id=record.request_id,
            at=record.at,
            tenant=request.tenant,
            key=record.key_id,
            key_name=request.key_name,
            adapter=request.adapter,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            ttft_s=record.ttft_s,
            duration_s=record.duration_s,
            load_s=record.load_s,
            slot_s=record.slot_s,
            finish_reason=record.finish_reason,
            status=record.status,
            cost=amount_text(record.cost),
        )


class PercentilesOut(BaseModel):
    """Percentiles in seconds, up to 19% too large; null without a measured request."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, percentiles: Percentiles) -> "PercentilesOut":
        return cls(p50=percentiles.p50, p95=percentiles.p95, p99=percentiles.p99)


class UsagePointOut(BaseModel):
    """Requests that arrived in one step."""

    start: datetime
    requests: int = Field(description="Requests that reached the engine, successful or not")
    failed: int = Field(description="Requests of these without a whole answer")
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int = Field(description="Requests that waited for their adapter to load")
    load_s: float
    slot_s: float
    cost: str | None = Field(description="Cost as a decimal; null for steps below an hour")
    ttft: PercentilesOut = Field(description="Time to the first token in the engine")
    duration: PercentilesOut = Field(description="Time to the end of whole answers")

    @classmethod
    def of(cls, point: SeriesPoint, *, costs: bool) -> "UsagePointOut":
        used = point.used
        return cls(
            start=point.start,
            requests=used.requests,
            failed=used.failed,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            cold_loads=used.cold_loads,
            load_s=used.load_s,
            slot_s=used.slot_s,
            cost=amount_text(used.cost) if costs else None,
            ttft=PercentilesOut.of(point.ttft),
            duration=PercentilesOut.of(point.duration),
        )


class UsageSeriesOut(BaseModel):
    """Usage by time. Steps without a request have no point."""

    start: datetime = Field(description="Start of the first step")
    end: datetime = Field(description="End of the last step")
    step: SeriesStep
    data: list[UsagePointOut]
    currency: str = Field(description="Currency of the costs")

    @classmethod
    def of(cls, series: Series, currency: str) -> "UsageSeriesOut":
        points = [UsagePointOut.of(point, costs=series.costs) for point in series.points]
        return cls(start=series.start, end=series.end, step=series.step, data=points, currency=currency)
