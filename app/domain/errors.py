"""Error classes and what a client sees of them: one row per class.

The tree::

    TenoraError
    ├── Unauthenticated    ├── Forbidden        ├── NotFound          ├── Conflict
    ├── InvalidRequest     ├── UnsupportedField ├── TooLarge          ├── MethodNotAllowed
    ├── ContextLengthExceeded
    ├── AdapterQuarantined ├── AdapterLoadFailed ├── AdapterRetired  ├── AdapterNotReady
    ├── WrongBase          ├── PreconditionFailed ├── QuotaExceeded    ├── UnsupportedEncoding
    ├── MergeRejected      ├── MergeFailed      ├── SourceUnavailable
    ├── IdempotencyConflict ├── IdempotencyInProgress ├── QueueFull
    ├── TooManyOpen        ├── BodyTooSlow
    ├── Limited (LimitExceeded, BudgetExceeded)
    └── EngineUnavailable  └── RegistryUnavailable  └── Busy

The leaves of :mod:`adapters.errors` have their rows here too.
"""

from dataclasses import dataclass

from adapters import errors as adapter_errors
from adapters.errors import Reason
from app.domain.limits.limiter import RateLimitStatus


class TenoraError(Exception):
    """Base of all errors of the application; the message is shown to clients as it is.

    Attributes:
        param: the request field that is to blame, if one is.
        retry_after: seconds after which the same call may succeed.
    """

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        self.message, self.param, self.retry_after = message, param, retry_after
        super().__init__(message)


class Unauthenticated(TenoraError):
    """No key, or one that does not work; which of the two is not said."""


class Forbidden(TenoraError):
    """The key works but lacks the scope."""


class NotFound(TenoraError):
    """There is no such thing, or it is another tenant's: the caller cannot tell.

    Attributes:
        foreign: the caller called it another tenant's; whoever keeps the audit trail wants to know.
    """

    def __init__(self, message: str, *, param: str | None = None, foreign: bool = False) -> None:
        self.foreign = foreign
        super().__init__(message, param=param)


class Conflict(TenoraError):
    """The state of a thing does not allow the change."""


class InvalidRequest(TenoraError):
    """A value is not allowed; the message names the field, the value found and what is allowed."""


class ContextLengthExceeded(TenoraError):
    """A prompt that leaves no room for a token of an answer in the base's context."""


class UnsupportedField(TenoraError):
    """A field that Tenora does not support, refused by name."""


class MethodNotAllowed(TenoraError):
    """The route exists, the method does not."""


class TooLarge(TenoraError):
    """A body, file or field beyond its cap."""


class BodyTooSlow(TenoraError):
    """The body came more slowly than the least rate."""


class AdapterQuarantined(TenoraError):
    """The version failed to load before, and is not tried again."""


class AdapterLoadFailed(TenoraError):
    """The engine could not load the version just now; whoever catches it quarantines the version.

    Attributes:
        version_id: the version's row.
    """

    def __init__(self, message: str, *, version_id: int) -> None:
        self.version_id = version_id
        super().__init__(message)


class AdapterRetired(TenoraError):
    """The version was taken out of service by its owner."""


class AdapterNotReady(TenoraError):
    """The version is still being tried on the engine, or failed that."""


class WrongBase(TenoraError):
    """The version was checked against another base model than this server's."""


class PreconditionFailed(TenoraError):
    """The thing was changed since the caller read it."""


class QuotaExceeded(TenoraError):
    """More than the tenant may have."""


class MergeRejected(TenoraError):
    """These versions cannot be merged so.

    Attributes:
        reasons: every reason found, at least one.
    """

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reason.message for reason in reasons), param=reasons[0].field)


class MergeFailed(TenoraError):
    """The merging process was stopped, by its limits or by an error of its own."""


class IdempotencyConflict(TenoraError):
    """The Idempotency-Key was sent before with another request."""


class IdempotencyInProgress(TenoraError):
    """The first request with this Idempotency-Key is not answered yet."""


class SourceUnavailable(TenoraError):
    """Where an import comes from did not answer, or not as agreed."""


class EngineUnavailable(TenoraError):
    """The engine is starting, or starting again."""


class RegistryUnavailable(TenoraError):
    """The registry's database does not answer, or its schema is not this release's."""


class Busy(TenoraError):
    """As much of this is going on as the settings allow."""


class QueueFull(TenoraError):
    """As many of the caller's own requests wait as may."""


class TooManyOpen(TenoraError):
    """The caller has as many of these under way as it may."""


class UnsupportedEncoding(TenoraError):
    """The body is compressed in a way that this route does not read."""


class Limited(TenoraError):
    """More than the caller may use.

    Attributes:
        standing: where the caller stands with its limits.
    """

    def __init__(self, message: str, *, param: str, retry_after: int | None, standing: RateLimitStatus) -> None:
        self.standing = standing
        super().__init__(message, param=param, retry_after=retry_after)


class LimitExceeded(Limited):
    """More than the caller's limits allow just now."""


class BudgetExceeded(Limited):
    """More than what is left of the caller's day or month."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a client sees: HTTP status, OpenAI's error type, a stable code."""

    status: int
    type: str
    code: str


def row_of(error: Exception) -> Row | None:
    """What a client sees of an error; None for one that is no part of the tree."""
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
