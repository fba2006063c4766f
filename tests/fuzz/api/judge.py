"""Invariants of every answer, independent of the call."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import requests
from schemathesis import Case, Response
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.api.errors import ANTHROPIC_PATHS, LORAX_PATHS

#: Conformance of an answer to the OpenAPI description.
DESCRIBED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

#: 503 codes that are no fault: the engine is absent or overloaded, or a source of imports is unreachable.
_UNAVAILABLE = frozenset({"engine_unavailable", "busy", "source_unavailable"})

_LEAKS = ("Traceback", "sqlalchemy", "sqlite", "site-packages", 'File "')


@dataclass(frozen=True)
class Call:
    """One call and its answer.

    Attributes:
        as_described: whether the request still belongs to the case's operation.
        secret: text that no answer may contain.
    """

    case: Case
    caller: str
    request: requests.PreparedRequest
    answer: requests.Response
    as_described: bool
    secret: str


def complaints(call: Call) -> Iterator[str]:
    """Return the faults of the answer.

    The same fault always has the same text.
    """
    answer = call.answer
    if not answer.headers.get("x-request-id"):
        yield "no x-request-id"
    if answer.status_code >= 400 and call.request.method != "HEAD":
        yield from _of_error(call)
    if answer.ok and call.caller in {"no key", "a wrong key", "from elsewhere"} and _guarded(call):
        yield f"{answer.status_code} for {call.caller}"
    if call.as_described:
        yield from _of_description(call)


def _guarded(call: Call) -> bool:
    return call.as_described and call.case.path not in {"/health/live", "/health/ready"}


def _of_error(call: Call) -> Iterator[str]:
    answer, status = call.answer, call.answer.status_code
    if call.case.path == "/health/ready" and status == 503 and call.as_described:
        return
    try:
        code = _code(json.loads(answer.content), str(call.request.path_url).partition("?")[0])
    except (ValueError, KeyError, TypeError, AssertionError):
        yield f"{status} without the envelope"
        return
    if answer.headers.get("content-type") != "application/json":
        yield f"{status} as {answer.headers.get('content-type')}"
    if status >= 500 and not (status == 503 and code in _UNAVAILABLE | {"overloaded", "overloaded_error"}):
        yield f"{status} {code}"
    for needed, header in ((401, "www-authenticate"), (405, "allow"), (409, "x-should-retry")):
        if status == needed and header not in answer.headers:
            yield f"{status} without {header}"
    if status in {429, 503} and not answer.headers.get("retry-after", "").isdigit():
        yield f"{status} without retry-after"
    for leak in (*_LEAKS, call.secret):
        if leak in answer.text:
            yield f"{leak!r} in an error"


def _code(body: object, path: str) -> str:
    """Return the error's stable code from a valid envelope."""
    assert isinstance(body, dict)
    if path in LORAX_PATHS:
        assert body.keys() == {"error", "error_type"}
        message, code = body["error"], body["error_type"]
    elif path in ANTHROPIC_PATHS:
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
        message, code = body["error"]["message"], body["error"]["type"]
    else:
        error = body["error"]
        assert body.keys() == {"error"}
        assert error.keys() - {"reasons"} == {"message", "type", "param", "code"}
        message, code = error["message"], error["code"]
        assert isinstance(error["type"], str)
    assert isinstance(message, str)
    assert message
    assert isinstance(code, str)
    return code


def _of_description(call: Call) -> Iterator[str]:
    try:
        call.case.validate_response(Response.from_requests(call.answer, verify=False), checks=DESCRIBED)
    except FailureGroup as group:
        yield from (_words(failure, call) for failure in group.exceptions)
    except Failure as failure:
        yield _words(failure, call)


def _words(failure: BaseException, call: Call) -> str:
    first = str(failure).strip().splitlines()
    return f"{call.answer.status_code}: {' '.join(first)[:160]}"
