"""Error responses: one envelope per family of routes, with status and code from app/domain/errors.py."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from adapters import errors as adapter_errors
from adapters.errors import AdapterError, AdapterRejected, BlobNotFound, InvalidName, Reason, StorageError
from adapters.wording import SENTENCES
from app.api.inference_headers import limit_headers
from app.domain.errors import (
    ROWS,
    FileLost,
    Forbidden,
    InvalidRequest,
    Limited,
    MergeRejected,
    MethodNotAllowed,
    NotFound,
    Row,
    TenoraError,
    row_of,
)
from app.observability.context import note_error
from app.services.bodies.anthropic_answers import error_body, error_type
from app.services.bodies.parsing import Unusable

logger = logging.getLogger(__name__)

#: LoRAX routes, whose clients expect LoRAX's error envelope.
LORAX_PATHS = frozenset({"/", "/generate", "/generate_stream"})

#: Anthropic's routes, whose clients expect Anthropic's error envelope.
ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})

#: Row of an unexpected error.
INTERNAL = Row(500, "server_error", "internal_error")

#: Row of unparsable bodies and malformed parameters.
_UNPROCESSABLE = Row(422, ROWS[InvalidRequest].type, ROWS[InvalidRequest].code)

_DEFAULT_RETRY_AFTER_S = 5
#: Retry-After in seconds when bytes are missing: their owner has to push them again.
_REPAIR_S = 60
_SHOWN = 80

#: Message for a path without a route.
NO_ROUTE = "This route does not exist. /docs lists the routes."

# Messages of storage errors hold paths and vendor texts. Clients get these neutral messages instead.
_NEUTRAL: dict[type[Exception], str] = {
    adapter_errors.ValidationFailed: (
        "The upload could not be checked within the limits for time and memory. Ask the platform team to raise them."
    ),
    adapter_errors.BlobNotFound: (
        "The adapter's bytes are missing from the store. Its owner can repair it: push the same files again."
    ),
    adapter_errors.DigestMismatch: (
        "The adapter's bytes in the store are damaged. Ask the platform team to remove them, then push the files again."
    ),
    adapter_errors.StoreUnavailable: "The adapter store does not answer. Try again later.",
    adapter_errors.ForeignStore: "The adapter store belongs to another registry. Tell the platform team.",
    adapter_errors.DiskFull: "The disk of this server is full. Try again later, or tell the platform team.",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error's public content, independent of the envelope."""

    row: Row
    message: str
    param: str | None = None
    reasons: Sequence[Reason] = ()
    retry_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def install(app: FastAPI) -> None:
    """Register a handler for each family of expected errors; RequestMiddleware answers all others."""
    for family in (TenoraError, AdapterError, HTTPException, RequestValidationError):
        app.add_exception_handler(family, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and isinstance(error.__cause__, ClientDisconnect):
        raise error.__cause__
    match error:
        case Forbidden(message=message) | NotFound(foreign=True, message=message):
            if caller := getattr(request.state, "caller", None):
                request.state.gateway.audit.access_log.refused(caller, message)
    return error_response(request.url.path, error)


def error_response(path: str, error: Exception) -> Response:
    """Build the response to a request for ``path`` that failed with ``error``."""
    problem = problem_of(error)
    note_error(problem.row.code)
    # The middleware that catches an unexpected error logs it with its traceback.
    if problem.row.status >= HTTPStatus.INTERNAL_SERVER_ERROR and problem.row is not INTERNAL:
        logger.warning("Request failed with %s (%s): %s", problem.row.code, type(error).__name__, error)
    return JSONResponse(body_of(path, problem), problem.row.status, _headers(problem))


def problem_of(error: Exception) -> Problem:
    """Map an error to its public content; an error without a row becomes an internal error without details."""
    if isinstance(error, HTTPException):
        # FastAPI wraps any error that interrupts the reading of a body.
        return problem_of(error.__cause__) if isinstance(error.__cause__, TenoraError) else _from_framework(error)
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    row = row_of(error)
    if row is None:
        return Problem(INTERNAL, "Internal error. Give the platform team the request id in the header x-request-id.")
    if isinstance(error, MergeRejected):
        return Problem(row, f"The versions cannot be merged. {_first(error.reasons)}", reasons=error.reasons)
    if isinstance(error, Limited):
        headers = limit_headers(error.rate_limits)
        return Problem(row, error.message, param=error.param, retry_after=error.retry_after, headers=headers)
    if isinstance(error, TenoraError):
        # Waiting does not restore the bytes of a file, so clients must not retry automatically.
        headers = {"x-should-retry": "false"} if isinstance(error, FileLost) else {}
        return Problem(row, error.message, param=error.param, retry_after=error.retry_after, headers=headers)
    if isinstance(error, AdapterRejected):
        # Close the connection instead of reading the rest of the body.
        headers = {"connection": "close"} if error.unread else {}
        return Problem(row, _first(error.reasons), reasons=error.reasons, headers=headers)
    if isinstance(error, InvalidName):
        return Problem(row, str(error), param=error.field)
    if isinstance(error, BlobNotFound):
        # Waiting does not restore the bytes, so clients must not retry automatically.
        return Problem(row, _NEUTRAL[BlobNotFound], retry_after=_REPAIR_S, headers={"x-should-retry": "false"})
    retry_after = error.retry_after if isinstance(error, StorageError) else None
    return Problem(row, _NEUTRAL[type(error)], retry_after=retry_after)


def body_of(path: str, problem: Problem) -> dict[str, Any]:
    """Build the error envelope of the API to which a path belongs."""
    if path in LORAX_PATHS:
        return lorax_body(problem)
    if path in ANTHROPIC_PATHS:
        return error_body(error_type(problem.row.status), problem.message)
    return openai_body(problem)


def openai_body(problem: Problem) -> dict[str, Any]:
    """Build OpenAI's error envelope, with the list of reasons if there are any."""
    error: dict[str, Any] = {
        "message": problem.message,
        "type": problem.row.type,
        "param": problem.param,
        "code": problem.row.code,
    }
    if problem.reasons:
        error["reasons"] = [reason.shown() for reason in problem.reasons]
    return {"error": error}


def lorax_body(problem: Problem) -> dict[str, Any]:
    """Build LoRAX's error envelope. Its clients know four error types and use the HTTP status for any other."""
    match problem.row.status:
        case 400 | 408 | 413 | 422:
            error_type = "validation"
        case 429 | 503:
            error_type = "overloaded"
        case 500:
            error_type = "generation"
        case _:
            error_type = problem.row.code
    return {"error": problem.message, "error_type": error_type}


def _headers(problem: Problem) -> dict[str, str]:
    headers = dict(problem.headers)
    match problem.row.status:
        case HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        case HTTPStatus.CONFLICT:
            # OpenAI's clients retry a conflict unless this header forbids it.
            headers["x-should-retry"] = "false"
        case HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # Close the connection instead of reading the rest of the body.
            headers["connection"] = "close"
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = str(problem.retry_after or _DEFAULT_RETRY_AFTER_S)
    return headers


def _from_framework(error: HTTPException) -> Problem:
    match error.status_code:
        case 404:
            return Problem(ROWS[NotFound], NO_ROUTE)
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"This route does not support this method. Use {allowed}."
            return Problem(ROWS[MethodNotAllowed], message, headers={"allow": allowed})
        case 400 if isinstance(error.__cause__, Unusable):
            return Problem(_UNPROCESSABLE, f"The body {error.__cause__}.", param="body")
        case 400:
            return Problem(_UNPROCESSABLE, "The body cannot be read as JSON. Send a JSON object in UTF-8.")
        case status:
            row = Row(status, "invalid_request_error", HTTPStatus(status).name.lower())
            return Problem(row, f"{HTTPStatus(status).phrase}.")


def _from_validation(error: RequestValidationError) -> Problem:
    reasons = [_reason(item) for item in error.errors()]
    message = f"The request is invalid. {_first(reasons)}"
    return Problem(_UNPROCESSABLE, message, param=reasons[0].field, reasons=reasons)


def _reason(item: Mapping[str, Any]) -> Reason:
    """Convert one pydantic error; its ``loc`` starts with the place of the value: body, query or path."""
    place, *names = (str(part) for part in item["loc"])
    if item["type"] == "json_invalid":
        return Reason("json_invalid", "body", f"not JSON at character {item['loc'][-1]}", "a JSON object")
    found = "nothing" if item["type"] == "missing" else _shown(item["input"])
    expected = str(item["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    allowed = "no such field" if item["type"] == "extra_forbidden" else expected
    field = ".".join(names) or place
    return Reason(item["type"], field, found, allowed, _sentence(item, field, found))


def _sentence(item: Mapping[str, Any], field: str, found: str) -> str:
    """Describe one pydantic error for people; empty for a code that has a default sentence."""
    message = str(item["msg"])
    if field == "body":
        state = "missing" if item["type"] == "missing" else found.removeprefix("a body that is ")
        return f"The body is {state}. Send a JSON object with content-type application/json."
    if item["type"] in SENTENCES:
        return ""
    if str(item["type"]).startswith("datetime"):
        return f"{field} is {found}, but must be a time such as 2026-11-29T10:00:00Z."
    if message.startswith("Input should be "):
        # Pydantic may append why it could not parse the text.
        allowed = message.removeprefix("Input should be ").partition(", unable to ")[0]
        return f"{field} is {found}, but must be {allowed}."
    return f"{field} is {found}. {message.removeprefix('Value error, ')}."


def _shown(value: object) -> str:
    """Format a value for display; containers show only their kind, because they may be whole bodies."""
    if isinstance(value, dict | list | bytes):
        return {dict: "an object", list: "a list"}.get(type(value), "a body that is not JSON")
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _first(reasons: Sequence[Reason]) -> str:
    """Return the first reason's message and the number of further reasons."""
    others = len(reasons) - 1
    if not others:
        return reasons[0].message
    return f"{reasons[0].message} There {'is 1 more reason' if others == 1 else f'are {others} more reasons'}."
