"""Error classes and their HTTP representation: status, type and code of each class.

The tree::

    TenoraError
    ├── Unauthenticated    ├── Forbidden        ├── NotFound          ├── Conflict
    ├── InvalidRequest     ├── UnsupportedField ├── TooLarge          ├── MethodNotAllowed
    ├── ContextLengthExceeded
    ├── AdapterQuarantined ├── AdapterLoadFailed ├── AdapterRetired  ├── AdapterNotReady
    ├── WrongBase          ├── PreconditionFailed ├── QuotaExceeded    ├── UnsupportedEncoding
    ├── MergeRejected      ├── MergeFailed      ├── SourceUnavailable ├── FileLost
    ├── IdempotencyConflict ├── IdempotencyInProgress ├── QueueFull
    ├── TooManyOpen        ├── BodyTooSlow
    ├── Limited (LimitExceeded, BudgetExceeded)
    └── EngineUnavailable  └── RegistryUnavailable  └── Busy

The table also covers the leaves of :mod:`adapters.errors`.
"""

from dataclasses import dataclass

from adapters import errors as adapter_errors
from adapters.errors import Reason
from app.domain.limits.limiter import RateLimitStatus


class TenoraError(Exception):
    """Base class of all application errors; clients see the message unchanged.

    Attributes:
        param: request field that caused the error, if any.
        retry_after: seconds after which the same call may succeed.
    """

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        self.message, self.param, self.retry_after = message, param, retry_after
        super().__init__(message)


class Unauthenticated(TenoraError):
    """Missing or invalid API key; the response does not tell which."""


class Forbidden(TenoraError):
    """The key is valid but lacks the required scope."""


class NotFound(TenoraError):
    """The resource does not exist or belongs to another tenant; the caller cannot tell which.

    Attributes:
        foreign: True if the name in the request refers to another tenant; the audit trail records this.
    """

    def __init__(self, message: str, *, param: str | None = None, foreign: bool = False) -> None:
        self.foreign = foreign
        super().__init__(message, param=param)


class Conflict(TenoraError):
    """The state of a resource does not allow the change."""


class InvalidRequest(TenoraError):
    """Invalid value; the message names the field, the value and the allowed values."""


class ContextLengthExceeded(TenoraError):
    """The prompt leaves no room for an output token in the context of the base model."""


class UnsupportedField(TenoraError):
    """Request field that Tenora rejects by name, because it does not support it."""


class MethodNotAllowed(TenoraError):
    """The route exists, but not with this HTTP method."""


class TooLarge(TenoraError):
    """A body, file or field exceeds its size limit."""


class BodyTooSlow(TenoraError):
    """The body arrived below the minimum transfer rate."""


class AdapterQuarantined(TenoraError):
    """The version failed to load before and is not retried."""


class AdapterLoadFailed(TenoraError):
    """The engine could not load the version, which is quarantined.

    Attributes:
        version_id: row id of the version.
    """

    def __init__(self, message: str, *, version_id: int) -> None:
        self.version_id = version_id
        super().__init__(message)


class AdapterRetired(TenoraError):
    """The owner took the version out of service."""


class AdapterNotReady(TenoraError):
    """The smoke test of the version has not ended, or it failed."""


class WrongBase(TenoraError):
    """The version was checked against another base model than the one this server runs."""


class PreconditionFailed(TenoraError):
    """The resource changed since the caller read it."""


class QuotaExceeded(TenoraError):
    """The change would exceed a quota of the tenant."""


class MergeRejected(TenoraError):
    """These versions cannot be merged with this recipe.

    Attributes:
        reasons: every reason found, at least one.
    """

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        super().__init__(" ".join(reason.message for reason in reasons), param=reasons[0].field)


class MergeFailed(TenoraError):
    """The merge process hit its resource limits or crashed."""


class IdempotencyConflict(TenoraError):
    """The Idempotency-Key was used before with a different request."""


class IdempotencyInProgress(TenoraError):
    """The first request with this Idempotency-Key is still running."""


class FileLost(TenoraError):
    """The store has lost or damaged the bytes of a file."""


class SourceUnavailable(TenoraError):
    """The source of an import did not respond, or sent an invalid response."""


class EngineUnavailable(TenoraError):
    """The engine is starting or restarting."""


class RegistryUnavailable(TenoraError):
    """The registry's database does not respond, or its schema does not fit this release."""


class Busy(TenoraError):
    """The concurrency limit in the settings is reached."""


class QueueFull(TenoraError):
    """The caller's own queue is full."""


class TooManyOpen(TenoraError):
    """The caller has reached its limit of open operations of this kind."""


class UnsupportedEncoding(TenoraError):
    """This route does not support the content encoding of the body."""


class Limited(TenoraError):
    """Base class of limit errors.

    Attributes:
        rate_limits: rate limit status of the caller.
    """

    def __init__(self, message: str, *, param: str, retry_after: int | None, rate_limits: RateLimitStatus) -> None:
        self.rate_limits = rate_limits
        super().__init__(message, param=param, retry_after=retry_after)


class LimitExceeded(Limited):
    """The request exceeds a rate limit of the caller."""


class BudgetExceeded(Limited):
    """The request exceeds the rest of the caller's daily or monthly budget."""


@dataclass(frozen=True, slots=True)
class Row:
    """HTTP representation of an error: status, OpenAI's error type and a stable code."""

    status: int
    type: str
    code: str


def row_of(error: Exception) -> Row | None:
    """Return the HTTP representation of an error; None for a class outside the tree."""
    return next((ROWS[kind] for kind in type(error).__mro__ if kind in ROWS), None)


ROWS: dict[type[Exception], Row] = {
    Unauthenticated: Row(401, "authentication_error", "invalid_api_key"),
    Forbidden: Row(403, "permission_error", "insufficient_scope"),
    NotFound: Row(404, "not_found_error", "not_found"),
    MethodNotAllowed: Row(405, "invalid_request_error", "method_not_allowed"),
    Conflict: Row(409, "conflict_error", "conflict"),
    AdapterQuarantined: Row(409, "conflict_error", "adapter_quarantined"),
    AdapterLoadFailed: Row(409, "conflict_error", "adapter_load_failed"),
    AdapterNotReady: Row(409, "conflict_error", "adapter_not_ready"),
    AdapterRetired: Row(410, "invalid_request_error", "adapter_retired"),
    WrongBase: Row(409, "conflict_error", "wrong_base"),
    PreconditionFailed: Row(412, "conflict_error", "precondition_failed"),
    QuotaExceeded: Row(403, "permission_error", "quota_exceeded"),
    MergeRejected: Row(422, "invalid_request_error", "merge_rejected"),
    MergeFailed: Row(422, "invalid_request_error", "merge_failed"),
    IdempotencyConflict: Row(409, "conflict_error", "idempotency_key_reused"),
    IdempotencyInProgress: Row(409, "conflict_error", "idempotency_in_progress"),
    TooLarge: Row(413, "invalid_request_error", "too_large"),
    BodyTooSlow: Row(408, "invalid_request_error", "body_too_slow"),
    UnsupportedEncoding: Row(415, "invalid_request_error", "unsupported_encoding"),
    InvalidRequest: Row(400, "invalid_request_error", "invalid_value"),
    ContextLengthExceeded: Row(400, "invalid_request_error", "context_length_exceeded"),
    UnsupportedField: Row(400, "invalid_request_error", "unsupported_field"),
    QueueFull: Row(429, "rate_limit_error", "queue_full"),
    TooManyOpen: Row(429, "rate_limit_error", "too_many_open"),
    LimitExceeded: Row(429, "rate_limit_error", "rate_limit_exceeded"),
    BudgetExceeded: Row(429, "insufficient_quota", "insufficient_quota"),
    FileLost: Row(503, "service_unavailable_error", "file_bytes_missing"),
    SourceUnavailable: Row(503, "service_unavailable_error", "source_unavailable"),
    EngineUnavailable: Row(503, "service_unavailable_error", "engine_unavailable"),
    RegistryUnavailable: Row(503, "service_unavailable_error", "registry_unavailable"),
    Busy: Row(503, "service_unavailable_error", "busy"),
    adapter_errors.UnsupportedBase: Row(500, "server_error", "unsupported_base"),
    adapter_errors.InvalidName: Row(422, "invalid_request_error", "invalid_name"),
    adapter_errors.AdapterRejected: Row(422, "invalid_request_error", "adapter_rejected"),
    adapter_errors.ValidationFailed: Row(422, "invalid_request_error", "validation_limit"),
    adapter_errors.BlobNotFound: Row(503, "service_unavailable_error", "adapter_bytes_missing"),
    adapter_errors.DigestMismatch: Row(503, "service_unavailable_error", "adapter_bytes_corrupt"),
    adapter_errors.StoreUnavailable: Row(503, "service_unavailable_error", "store_unavailable"),
    adapter_errors.ForeignStore: Row(503, "service_unavailable_error", "store_of_another_registry"),
    adapter_errors.DiskFull: Row(503, "service_unavailable_error", "disk_full"),
}
