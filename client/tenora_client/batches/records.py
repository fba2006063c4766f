"""Answers of the server about files and batches."""

from __future__ import annotations

from typing import Any, Union

from msgspec import field

from tenora_client.answers import Answer

#: States in which a batch stays.
FINAL_STATES = frozenset({"completed", "failed", "expired", "cancelled"})


class File(Answer, frozen=True, kw_only=True):
    """File of a tenant.

    Attributes:
        bytes: size of the content.
        purpose: ``batch`` for an input, ``batch_output`` for what a batch wrote.
        created_at, expires_at: seconds since 1970.
    """

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: Union[int, None] = None


class FileDeletion(Answer, frozen=True, kw_only=True):
    """Deleted file.

    Attributes:
        deletion: id of the report that shows which copies were verified as gone; None if the server sent none.
    """

    id: str
    deleted: bool
    deletion: Union[str, None] = None


class BatchProblem(Answer, frozen=True, kw_only=True):
    """Problem of a line of the input, found before the first line ran."""

    message: Union[str, None] = None
    code: Union[str, None] = None
    line: Union[int, None] = None
    param: Union[str, None] = None


class BatchProblems(Answer, frozen=True, kw_only=True):
    """Problems of the input, at most the first 1,000."""

    data: list[BatchProblem] = field(default_factory=list)


class RequestCounts(Answer, frozen=True, kw_only=True):
    """Lines of a batch. ``total`` is 0 until all lines are validated."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchTokens(Answer, frozen=True, kw_only=True):
    """Tokens of the answers so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Batch(Answer, frozen=True, kw_only=True):
    """Batch of requests.

    Attributes:
        status: ``validating``, ``in_progress``, ``finalizing``, ``completed``, ``failed``, ``expired``, ``cancelling``
            or ``cancelled``.
        output_file_id, error_file_id: files with the answers and with the errors; None while there is none.
        tenora: the server's further facts, such as the quote and the cause for which no line runs.
    """

    id: str
    status: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    output_file_id: Union[str, None] = None
    error_file_id: Union[str, None] = None
    errors: Union[BatchProblems, None] = None
    request_counts: Union[RequestCounts, None] = None
    usage: Union[BatchTokens, None] = None
    metadata: Union[dict[str, str], None] = None
    expires_at: Union[int, None] = None
    in_progress_at: Union[int, None] = None
    finalizing_at: Union[int, None] = None
    completed_at: Union[int, None] = None
    failed_at: Union[int, None] = None
    expired_at: Union[int, None] = None
    cancelling_at: Union[int, None] = None
    cancelled_at: Union[int, None] = None
    tenora: Union[dict[str, Any], None] = None
