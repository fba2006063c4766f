"""Error responses of the OpenAPI document: one component for each status and envelope, with an example."""

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from adapters.errors import Reason
from app.api.errors import ANTHROPIC_PATHS, LORAX_PATHS, Problem, body_of
from app.api.openapi_components import reference
from app.api.openapi_headers import REQUEST_ID, header
from app.api.schemas import ERRORS, AnthropicErrorResponse, ErrorResponse, LoraxErrorResponse
from app.domain.errors import (
    ROWS,
    AdapterRetired,
    BodyTooSlow,
    Conflict,
    EngineUnavailable,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    Row,
    TooLarge,
    Unauthenticated,
    UnsupportedEncoding,
)

_REASON = Reason("invalid_value", "limit", '"x"', "a valid integer", 'limit is "x", but must be a valid integer.')
_UNPROCESSABLE = Row(422, ROWS[InvalidRequest].type, ROWS[InvalidRequest].code)

_PROBLEMS = (
    Problem(ROWS[InvalidRequest], "temperature is 3; it must be a number from 0 to 2.", "temperature"),
    Problem(ROWS[Unauthenticated], "Missing or invalid API key."),
    Problem(ROWS[Forbidden], "The key lacks the scope adapters:write."),
    Problem(ROWS[NotFound], "There is no adapter 'pricing'.", "adapter"),
    Problem(ROWS[BodyTooSlow], "The body arrived too slowly. Send it again over a faster connection."),
    Problem(ROWS[Conflict], "The version pricing@3 is not ready. Wait until its state is ready.", "version"),
    Problem(ROWS[AdapterRetired], "pricing@2 was retired: replaced by pricing@3.", "model"),
    Problem(ROWS[PreconditionFailed], 'The alias has changed. Its ETag is "5".', "If-Match"),
    Problem(ROWS[TooLarge], "The body has more than 2097152 bytes, the limit of this route.", "body"),
    Problem(ROWS[UnsupportedEncoding], "Content-Encoding is br. Use gzip, deflate or none.", "content-encoding"),
    Problem(_UNPROCESSABLE, f"The request is invalid. {_REASON.message}", "limit", (_REASON,)),
    Problem(ROWS[LimitExceeded], "The tenant has used its 60 requests per minute. Try again in 7 s."),
    Problem(ROWS[EngineUnavailable], "The engine is restarting. Try again later."),
)


@dataclass(frozen=True, slots=True)
class _Envelope:
    """Error envelope of one API.

    Attributes:
        prefix: prefix of the components' names.
        path: a path of the API.
    """

    prefix: str
    model: type[BaseModel]
    path: str


_OPENAI = _Envelope("", ErrorResponse, "/v1/models")
_LORAX = _Envelope("Lorax", LoraxErrorResponse, "/generate")
_ANTHROPIC = _Envelope("Anthropic", AnthropicErrorResponse, "/v1/messages")
_ENVELOPES = (_OPENAI, _LORAX, _ANTHROPIC)
_RESPONSES = "#/components/responses/"


def error_reference(path: str, status: int) -> dict[str, str]:
    """Build the reference to the response component for an error of a path."""
    others = dict.fromkeys(LORAX_PATHS, _LORAX) | dict.fromkeys(ANTHROPIC_PATHS, _ANTHROPIC)
    return {"$ref": f"{_RESPONSES}{_name(others.get(path, _OPENAI), status)}"}


def error_responses(paths: Iterable[str]) -> dict[str, Any]:
    """Return the components of error responses by name.

    Args:
        paths: references to the components that are used.
    """
    names = {path.removeprefix(_RESPONSES) for path in paths}
    found = ((_name(kind, problem.row.status), kind, problem) for kind in _ENVELOPES for problem in _PROBLEMS)
    return {name: _response(kind, problem) for name, kind, problem in found if name in names}


def _name(envelope: _Envelope, status: int) -> str:
    words = HTTPStatus(status).name.split("_")
    return envelope.prefix + "".join(word.capitalize() for word in words)


def _response(envelope: _Envelope, problem: Problem) -> dict[str, Any]:
    status = problem.row.status
    named = {401: ["WwwAuthenticate"], 409: ["ShouldRetry"], 429: ["RetryAfter"], 503: ["RetryAfter"]}.get(status, [])
    media = {"schema": reference(envelope.model.__name__), "example": body_of(envelope.path, problem)}
    return {
        "description": ERRORS[status],
        "headers": dict(header(name) for name in (REQUEST_ID, *named)),
        "content": {"application/json": media},
    }
