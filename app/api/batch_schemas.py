"""JSON schemas of batches: OpenAI's, and the object ``tenora`` for what goes beyond it."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from app.domain.batch_forecast import expected_end, is_late, lines_per_s
from app.domain.batches import Batch, BatchOptions, BatchState, BatchUsage, Cause, Quote
from app.domain.money import amount_text
from app.services.batches.endpoints import ENDPOINTS
from app.services.batches.service import MAX_LIMIT, MAX_WIDTH, NewBatch

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of batches in one page")]
After = Annotated[str | None, Query(description="Id of the last batch of the previous page")]

_WINDOW = "Time within which the batch runs, from `10m` to `7d`: minutes (`m`), hours (`h`) or days (`d`)"
_ENDPOINTS = ", ".join(f"`{endpoint}`" for endpoint in ENDPOINTS)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OutputExpiry(_Body):
    anchor: Literal["created_at"] = Field(description="Start of the lifetime: the creation of the output file")
    seconds: int = Field(description="Seconds until the output expires, from 1 hour to 30 days", examples=[2_592_000])


class BatchOptionsIn(_Body):
    model: str | None = Field(None, description="Model of lines that name none; default: the base")
    width: int | None = Field(
        None, description=f"Maximum number of its lines that run at once, 1 to {MAX_WIDTH}; default: as many as fit"
    )


class BatchCreate(_Body):
    input_file_id: str = Field(description="Id of an uploaded file with the purpose `batch`")
    endpoint: str = Field(description=f"Endpoint of all lines: {_ENDPOINTS}", examples=["/v1/chat/completions"])
    completion_window: str = Field(description=_WINDOW, examples=["24h"])
    metadata: dict[str, str] | None = Field(
        None, description="Up to 16 texts of up to 512 characters, by keys of up to 64 characters"
    )
    output_expires_after: OutputExpiry | None = Field(
        None, description="Lifetime of the output; default: that of uploaded files"
    )
    tenora: BatchOptionsIn | None = Field(None, description="Options beyond OpenAI's")

    def to_batch(self) -> NewBatch:
        options, expiry = self.tenora, self.output_expires_after
        return NewBatch(
            self.input_file_id,
            self.endpoint,
            self.completion_window,
            self.metadata,
            None if expiry is None else expiry.seconds,
            BatchOptions() if options is None else BatchOptions(options.model, options.width),
        )


class BatchProblemOut(BaseModel):
    code: str
    line: int | None = Field(description="Number of the line in the input file, from 1; null: the whole batch")
    message: str
    param: str | None = Field(description="Field that caused it, such as `body.max_tokens`")


class BatchProblemsOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchProblemOut] = Field(description="The first 1,000 problems")


class BatchCountsOut(BaseModel):
    total: int = Field(description="Number of lines; 0 until they are validated")
    completed: int = Field(description="Lines with an answer")
    failed: int = Field(description="Lines with an error")


class CachedTokensOut(BaseModel):
    cached_tokens: int = Field(description="Tokens from the engine's prefix cache")


class ReasoningTokensOut(BaseModel):
    reasoning_tokens: int = Field(0, description="Always 0")


class BatchUsageOut(BaseModel):
    """Tokens of the answers so far."""

    input_tokens: int
    input_tokens_details: CachedTokensOut
    output_tokens: int
    output_tokens_details: ReasoningTokensOut
    total_tokens: int

    @classmethod
    def of(cls, usage: BatchUsage) -> Self:
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=CachedTokensOut(cached_tokens=usage.cached_tokens),
            output_tokens=usage.output_tokens,
            output_tokens_details=ReasoningTokensOut(reasoning_tokens=0),
            total_tokens=usage.prompt_tokens + usage.output_tokens,
        )


class QuoteOut(BaseModel):
    """Estimate of a batch, made when its lines were validated."""

    lines: int
    prompt_tokens: int = Field(description="Tokens of all prompts")
    most_output_tokens: int = Field(description="Most tokens of all answers")
    most_cost: str = Field(description="Most that the batch can cost", examples=["1.25"])
    expected_s: float | None = Field(
        description="Seconds to the end at the rate of the tenant's last batch; null: unknown"
    )

    @classmethod
    def of(cls, quote: Quote) -> Self:
        return cls(
            lines=quote.lines,
            prompt_tokens=quote.prompt_tokens,
            most_output_tokens=quote.most_output_tokens,
            most_cost=amount_text(quote.most_cost),
            expected_s=quote.expected_s,
        )


class CauseOut(BaseModel):
    code: str
    message: str

    @classmethod
    def of(cls, cause: Cause | None) -> Self | None:
        return None if cause is None else cls(code=cause.code, message=cause.message)


class BatchExtraOut(BaseModel):
    """Fields beyond OpenAI's batch."""

    model: str | None = Field(description="Model of lines that name none; null: the base")
    width: int | None = Field(description="Maximum number of its lines that run at once; null: as many as fit")
    quote: QuoteOut | None = Field(description="Estimate; null until the lines are validated")
    cost: str = Field(description="Cost of the answers so far", examples=["0.1"])
    blocked: CauseOut | None = Field(description="Why no line runs at present; null: nothing blocks the batch")
    reason: CauseOut | None = Field(description="Why the server cancelled the batch; null: it did not")
    rate: float | None = Field(description="Lines per second so far; null before the first result")
    expected_at: int | None = Field(description="Expected end (Unix time) at the rate so far; null: unknown")
    warnings: list[str] = Field(description="Problems that do not stop the batch, as sentences")

    @classmethod
    def of(cls, batch: Batch, now: datetime) -> Self:
        rate, end = lines_per_s(batch, now), expected_end(batch, now)
        return cls(
            model=batch.options.model,
            width=batch.options.width,
            quote=None if batch.quote is None else QuoteOut.of(batch.quote),
            cost=amount_text(batch.usage.cost),
            blocked=CauseOut.of(batch.blocked),
            reason=CauseOut.of(batch.reason),
            rate=None if rate is None else round(rate, 3),
            expected_at=None if end is None else int(end.timestamp()),
            warnings=list(_warnings(batch, now, end)),
        )


class _BatchFields(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    input_file_id: str
    output_file_id: str | None = Field(description="File with the answers; null: none yet, or there are none")
    error_file_id: str | None = Field(description="File with the errors of lines; null: none yet, or there are none")
    completion_window: str = Field(description=_WINDOW)
    status: BatchState
    created_at: int = Field(description="Unix time, as all times of a batch")
    expires_at: int = Field(description="End of the completion window")
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCountsOut
    usage: BatchUsageOut
    tenora: BatchExtraOut


class BatchOut(_BatchFields):
    """A batch as OpenAI shows it, with `tenora` for what goes beyond."""

    model: str | None = Field(description="Model of lines that name none; null: the base")
    errors: BatchProblemsOut | None = Field(description="Problems of the lines, if the batch failed")
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch, now: datetime) -> Self:
        problems = None
        if batch.errors is not None:
            problems = BatchProblemsOut(data=[BatchProblemOut(**problem) for problem in batch.errors])
        return cls(
            **_fields(batch, now),
            model=batch.options.model,
            errors=problems,
            metadata=None if batch.metadata is None else dict(batch.metadata),
        )


class BatchListOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchOut] = Field(description="Batches, newest first")
    first_id: str | None
    last_id: str | None = Field(description="Value of `after` for the next page")
    has_more: bool


class PlatformBatchOut(_BatchFields):
    """A batch for the platform: neither the texts of its problems nor its metadata."""

    tenant: str = Field(description="Slug of the tenant")
    created_by: str = Field(description="Id of the key that created it and is charged")
    problems: int = Field(description="Number of problems of its lines")

    @classmethod
    def of(cls, tenant: str, batch: Batch, now: datetime) -> Self:
        problems = len(batch.errors or ())
        return cls(**_fields(batch, now), tenant=tenant, created_by=batch.created_by, problems=problems)


class PlatformBatchListOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[PlatformBatchOut] = Field(description="Batches, newest first")
    first_id: str | None
    last_id: str | None = Field(description="Value of `after` for the next page")
    has_more: bool


def _fields(batch: Batch, now: datetime) -> dict[str, Any]:
    times = {
        f"{state.value}_at": _unix(batch.times.get(state)) for state in BatchState if state is not BatchState.VALIDATING
    }
    return {
        "id": batch.id,
        "endpoint": batch.endpoint,
        "input_file_id": batch.input_file_id,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "completion_window": batch.completion_window,
        "status": batch.state,
        "created_at": _unix(batch.created_at),
        "expires_at": _unix(batch.expires_at),
        **times,
        "request_counts": BatchCountsOut(total=batch.total, completed=batch.completed, failed=batch.failed),
        "usage": BatchUsageOut.of(batch.usage),
        "tenora": BatchExtraOut.of(batch, now),
    }


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _warnings(batch: Batch, now: datetime, end: datetime | None) -> list[str]:
    if end is None or not is_late(batch, now):
        return []
    late = (
        f"At the present rate the batch ends at {end:%Y-%m-%d %H:%M} UTC, but its window ends at "
        f"{batch.expires_at:%Y-%m-%d %H:%M} UTC. Lines without an answer will expire then."
    )
    return [late]
