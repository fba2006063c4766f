"""Batches of requests, as frozen data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class BatchState(StrEnum):
    """Life cycle of a batch, with OpenAI's names.

    ``validating -> in_progress -> finalizing -> completed``. ``validating`` may end in ``failed``. ``validating`` and
    ``in_progress`` may become ``cancelling``, which ends in ``cancelled``, or end in ``expired``.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)


class ChunkState(StrEnum):
    """Life cycle of a chunk: ``waiting <-> running``, then ``done``."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options beyond OpenAI's.

    Attributes:
        model: model of lines that name none.
        width: most lines that run at once; None: as many as the servers run.
    """

    model: str | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class BatchUsage:
    """Tokens and cost (picos, see :mod:`app.domain.money`) of a batch's answers so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Quote:
    """Estimate of a batch, made when its lines were validated.

    Attributes:
        prompt_tokens: tokens of all prompts.
        most_output_tokens: most tokens of all answers.
        most_cost: most that the batch can cost, in picos.
        expected_s: seconds to the end at the present rate of the servers; None if no rate is known.
    """

    lines: int
    prompt_tokens: int
    most_output_tokens: int
    most_cost: int
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a batch is blocked, or was cancelled by the server: a code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch.

    Attributes:
        id: ``batch_`` and 16 hex digits.
        completion_window: as the caller wrote it, such as ``24h``.
        errors: problems of the lines, each with ``code``, ``line``, ``message`` and ``param``; None without any.
        total: number of lines; 0 until they are validated.
        completed: lines with an answer.
        failed: lines with an error.
        node: node that validates or finalizes it, until ``leased_until``.
        times: time at which each state began.
    """

    id: str
    tenant_id: int
    state: BatchState
    endpoint: str
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    completion_window: str
    options: BatchOptions
    metadata: Mapping[str, str] | None
    output_lifetime_s: int
    errors: Sequence[Mapping[str, Any]] | None
    quote: Quote | None
    blocked: Cause | None
    reason: Cause | None
    total: int
    completed: int
    failed: int
    usage: BatchUsage
    node: str | None
    leased_until: datetime | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    times: Mapping[BatchState, datetime]


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Place of a line in its input file: ``number`` from 1, offset and length in bytes."""

    number: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of one version that one node runs.

    Attributes:
        version_id: row id of the version; None for the base model.
        model: name that resolves to this version only.
        segment: digest of the blob with its results; None until it is done.
    """

    batch_id: str
    number: int
    version_id: int | None
    model: str
    lines: tuple[LinePlace, ...]
    state: ChunkState
    node: str | None = None
    leased_until: datetime | None = None
    segment: str | None = None


@dataclass(frozen=True, slots=True)
class LineResult:
    """Result of a line: a line of the output file, or with ``succeeded`` False of the error file, as JSON."""

    batch_id: str
    line: int
    chunk: int
    succeeded: bool
    content: str


#: Prefix of the request ids of lines. Ids of other requests are hexadecimal, so no client can have one like this.
_LINE_PREFIX = "batch-"


def line_request_id(batch_id: str, line: int) -> str:
    """Return the request id of a line: the same for every attempt, so its usage is recorded once."""
    return f"{_LINE_PREFIX}{batch_id.removeprefix('batch_')}-{line}"


def is_line(request_id: str) -> bool:
    """Return whether a request id is that of a line."""
    return request_id.startswith(_LINE_PREFIX)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot run.

    Attributes:
        line: number of the line in the input file, from 1; None: the whole batch.
        param: field that caused it, such as ``body.max_tokens``.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None
