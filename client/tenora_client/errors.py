"""Errors of the client: one tree under :class:`TenoraError`.

The message of each error says what happened, then what to do. Errors of the server have the server's sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any


class TenoraError(Exception):
    """Base of all errors of this package.

    Attributes:
        status: HTTP status, None if no server answered.
        code: the server's stable word for programs, such as ``rate_limit_exceeded``; None if the server sent none.
        param: field or object that the error is about, None if the server named none.
        request_id: id of the request in the server's log, None if there is none.
    """

    status: int | None = None
    code: str | None = None
    param: str | None = None
    request_id: str | None = None


class ConfigurationError(TenoraError):
    """The client has no usable address or key."""


class ConnectionFailed(TenoraError):
    """The server did not answer, or the connection was lost."""


class VersionMismatch(TenoraError):
    """Server and client are of releases that do not fit: a route is missing, or an answer has another form.

    Attributes:
        client_version: release of this package.
        server_version: release of the server, None if it does not tell.
    """

    def __init__(self, message: str, client_version: str, server_version: str | None) -> None:
        self.client_version, self.server_version = client_version, server_version
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.client_version, self.server_version)


class Refused(TenoraError):
    """Error response of the server.

    Attributes:
        body: JSON body as sent.
        status: HTTP status. It is 200 for an error inside a stream.
        reasons: all reasons of a refused upload or body, empty for other errors.
        retry_after: seconds to wait before the next try, None if the server named none.
    """

    status: int

    def __init__(
        self, status: int, body: dict[str, Any], request_id: str | None, retry_after: float | None = None
    ) -> None:
        self.body, self.status, self.request_id, self.retry_after = body, status, request_id, retry_after
        details = _details(body)
        self.code, self.param = _text(details.get("code")), _text(details.get("param"))
        reasons = details.get("reasons")
        self.reasons = [r for r in reasons if isinstance(r, dict)] if isinstance(reasons, list) else []
        super().__init__(_with_status(details.get("message"), status, request_id))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries, for example in a pool of workers.
        return type(self), (self.status, self.body, self.request_id, self.retry_after)


class ForeignAnswer(Refused):
    """The answer is not from a Tenora server."""


class InvalidRequest(Refused):
    """A field, name or value of the request is not allowed (400, 413, 415, 422)."""


class UploadRejected(InvalidRequest):
    """The adapter cannot be served on this base; ``reasons`` has every reason."""


class AuthenticationError(Refused):
    """Missing, wrong, expired or revoked key (401)."""


class PermissionDenied(Refused):
    """The key lacks a scope, or a quota is used up (403)."""


class NotFound(Refused):
    """The object does not exist, or belongs to another tenant (404)."""


class Conflict(Refused):
    """The state of an object does not allow the request (409, 410, 412)."""


class RateLimited(Refused):
    """A limit of the caller is reached (429); ``retry_after`` tells when to try again."""


class ServerError(Refused):
    """The server failed or cannot do it now (5xx)."""


_BY_STATUS: Mapping[int, type[Refused]] = {
    HTTPStatus.UNAUTHORIZED: AuthenticationError,
    HTTPStatus.FORBIDDEN: PermissionDenied,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Conflict,
    HTTPStatus.PRECONDITION_FAILED: Conflict,
    HTTPStatus.TOO_MANY_REQUESTS: RateLimited,
}
#: Error events of streams have the status 200, so their type decides.
_BY_TYPE: Mapping[object, type[Refused]] = {
    "authentication_error": AuthenticationError,
    "conflict_error": Conflict,
    "insufficient_quota": RateLimited,
    "invalid_request_error": InvalidRequest,
    "not_found_error": NotFound,
    "permission_error": PermissionDenied,
    "rate_limit_error": RateLimited,
}
_UPLOAD_CODES = frozenset({"adapter_rejected", "validation_limit"})


def refusal(
    status: int, body: dict[str, Any], request_id: str | None = None, retry_after: float | None = None
) -> Refused:
    """Build the error of the tree that fits an error response."""
    details = _details(body)
    if details.get("code") in _UPLOAD_CODES:
        kind: type[Refused] = UploadRejected
    elif status < HTTPStatus.BAD_REQUEST:
        kind = _BY_TYPE.get(details.get("type"), ServerError)
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = ServerError
    else:
        kind = _BY_STATUS.get(status, InvalidRequest)
    return kind(status, body, request_id, retry_after)


def foreign_answer(status: int, text: str) -> ForeignAnswer:
    """Build the error for an answer that no Tenora server sends."""
    message = f"The answer is not from a Tenora server: {text[:200]!r}. Check the server's URL."
    return ForeignAnswer(status, {"error": {"message": message}}, None)


def _details(body: Mapping[str, Any]) -> Mapping[str, Any]:
    error = body.get("error")
    return error if isinstance(error, dict) else {"message": error}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _with_status(message: object, status: int, request_id: str | None) -> str:
    """Put the status and the request id before the full stop of the server's message."""
    sentence = str(message or "The server gave no reason.")
    suffix = f" ({status}, request {request_id})" if request_id else f" ({status})"
    return f"{sentence[:-1]}{suffix}." if sentence.endswith(".") else f"{sentence}{suffix}"
