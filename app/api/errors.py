"""What a client sees of an error: one envelope per family of routes, built from the rows of app/domain/errors.py."""

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
from app.api.inference_headers import limit_headers
from app.domain.errors import (
    ROWS,
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
from app.services.bodies.parsing import Unusable

logger = logging.getLogger(__name__)

#: Routes of LoRAX's API, whose clients know another envelope.
LORAX_PATHS = frozenset({"/", "/generate", "/generate_stream"})

#: What nobody foresaw.
INTERNAL = Row(500, "server_error", "internal_error")

#: Unparsable bodies and parameters of the wrong shape.
_UNPROCESSABLE = Row(422, ROWS[InvalidRequest].type, ROWS[InvalidRequest].code)

_DEFAULT_RETRY_AFTER_S = 5
#: What a person takes at least to put lost bytes back.
_REPAIR_S = 60
_SHOWN = 80

# Errors of stores and disks carry paths and vendors' words; clients get these instead.
_NEUTRAL: dict[type[Exception], str] = {
    adapter_errors.ValidationFailed: "the upload could not be checked within the limits for time and memory",
    adapter_errors.BlobNotFound: (
        "The adapter's bytes are missing from the store. Its owner can repair it: push the same files again."
    ),
    adapter_errors.DigestMismatch: (
        "The adapter's bytes in the store are damaged. Ask the platform team to remove them, then push the files again."
    ),
    adapter_errors.StoreUnavailable: "the adapter store does not answer",
    adapter_errors.ForeignStore: "the adapter store belongs to another registry",
    adapter_errors.DiskFull: "this server's disk has no room",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as it is shown, before it takes the shape of one family of routes."""

    row: Row
    message: str
    param: str | None = None
    reasons: Sequence[Reason] = ()
    retry_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def install(app: FastAPI) -> None:
    """Give every family of expected errors its answer; what is left is the request frame's."""
    for family in (TenoraError, AdapterError, HTTPException, RequestValidationError):
        app.add_exception_handler(family, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and isinstance(error.__cause__, ClientDisconnect):
        raise error.__cause__
    match error:
        case Forbidden(message=words) | NotFound(foreign=True, message=words):
            if caller := getattr(request.state, "caller", None):
                request.state.process.audit.accesses.refused(caller, words)
    return error_response(request.url.path, error)


def error_response(path: str, error: Exception) -> Response:
    """The answer to a request for ``path`` that ended in ``error``."""
    problem = problem_of(error)
    note_error(problem.row.code)
    # The unforeseen is logged by whoever caught it, with its traceback.
    if problem.row.status >= HTTPStatus.INTERNAL_SERVER_ERROR and problem.row is not INTERNAL:
        logger.warning("%s: %s: %s", problem.row.code, type(error).__name__, error)
    body = lorax_body(problem) if path in LORAX_PATHS else openai_body(problem)
    return JSONResponse(body, problem.row.status, _headers(problem))


def problem_of(error: Exception) -> Problem:
    """Look an error up; one without a row is an internal error that says nothing of itself."""
    if isinstance(error, HTTPException):
        # FastAPI wraps whatever ended the reading of a body.
        return problem_of(error.__cause__) if isinstance(error.__cause__, TenoraError) else _from_framework(error)
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    row = row_of(error)
    if row is None:
        return Problem(INTERNAL, "internal error; the request id helps whoever runs this server to find out why")
    if isinstance(error, MergeRejected):
        return Problem(row, _summary("the versions cannot be merged so", error.reasons), reasons=error.reasons)
    if isinstance(error, Limited):
        headers = limit_headers(error.standing)
        return Problem(row, error.message, param=error.param, retry_after=error.retry_after, headers=headers)
    if isinstance(error, TenoraError):
        return Problem(row, error.message, param=error.param, retry_after=error.retry_after)
    if isinstance(error, AdapterRejected):
        # The rest of the body is not worth reading.
        headers = {"connection": "close"} if error.unread else {}
        return Problem(row, _first(error.reasons), reasons=error.reasons, headers=headers)
    if isinstance(error, InvalidName):
        return Problem(row, str(error), param=error.field)
    if isinstance(error, BlobNotFound):
        # Waiting does not bring the bytes back: clients must not retry by themselves.
        return Problem(row, _NEUTRAL[BlobNotFound], retry_after=_REPAIR_S, headers={"x-should-retry": "false"})
    retry_after = error.retry_after if isinstance(error, StorageError) else None
    return Problem(row, _NEUTRAL[type(error)], retry_after=retry_after)


def openai_body(problem: Problem) -> dict[str, Any]:
    """OpenAI's envelope, with every reason where there are several."""
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
    """LoRAX's envelope. Its clients know four types; for any other they go by the HTTP status."""
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
            # OpenAI's clients try a conflict again unless they are told not to.
            headers["x-should-retry"] = "false"
        case HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # The rest of the body is not worth reading.
            headers["connection"] = "close"
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = str(problem.retry_after or _DEFAULT_RETRY_AFTER_S)
    return headers


def _from_framework(error: HTTPException) -> Problem:
    match error.status_code:
        case 404:
            return Problem(ROWS[NotFound], "there is no such route")
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"this route does not have this method; allowed {allowed}"
            return Problem(ROWS[MethodNotAllowed], message, headers={"allow": allowed})
        case 400 if isinstance(error.__cause__, Unusable):
            return Problem(_UNPROCESSABLE, f"body: {error.__cause__}", param="body")
        case 400:
            return Problem(_UNPROCESSABLE, "the body is not JSON that can be read")
        case status:
            row = Row(status, "invalid_request_error", HTTPStatus(status).name.lower())
            return Problem(row, HTTPStatus(status).phrase)


def _from_validation(error: RequestValidationError) -> Problem:
    reasons = [_reason(item) for item in error.errors()]
    return Problem(
        _UNPROCESSABLE, _summary("the request is not valid", reasons), param=reasons[0].field, reasons=reasons
    )


def _reason(item: Mapping[str, Any]) -> Reason:
    """One of pydantic's complaints; ``loc`` starts with where the value was: body, query, path."""
    where, *names = (str(part) for part in item["loc"])
    if item["type"] == "json_invalid":
        return Reason("json_invalid", "body", f"not JSON at character {item['loc'][-1]}", "a JSON object")
    found = "nothing" if item["type"] == "missing" else _shown(item["input"])
    msg = str(item["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    allowed = "no such field" if item["type"] == "extra_forbidden" else msg
    return Reason(item["type"], ".".join(names) or where, found, allowed)


def _shown(value: object) -> str:
    """A value for display; of containers only the kind, as they may be whole bodies."""
    if isinstance(value, dict | list | bytes):
        return {dict: "an object", list: "a list"}.get(type(value), "a body that is not JSON")
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _first(reasons: Sequence[Reason]) -> str:
    """The sentence that says most, and how many others there are."""
    others = len(reasons) - 1
    if not others:
        return reasons[0].message
    return f"{reasons[0].message} There {'is 1 more reason' if others == 1 else f'are {others} more reasons'}."


def _summary(what: str, reasons: Sequence[Reason]) -> str:
    rest = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{what}: {reasons[0].message}{rest}"
