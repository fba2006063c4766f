"""What every answer must be, whatever the call was."""

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

from app.api.errors import LORAX_PATHS

#: What the description of the API must say of an answer.
DESCRIBED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

#: The 503 that are no fault: the engine is not there or has enough to do, a source of imports is out of reach.
_UNAVAILABLE = frozenset({"engine_unavailable", "busy", "source_unavailable"})

_LEAKS = ("Traceback", "sqlalchemy", "sqlite", "site-packages", 'File "')


@dataclass(frozen=True)
class Call:
    """One call and its answer.

    Attributes:
        as_described: whether the request is still one of the case's operation.
        secret: text that no answer may hold.
    """

    case: Case
    caller: str
    request: requests.PreparedRequest
    answer: requests.Response
    as_described: bool
    secret: str


def complaints(call: Call) -> Iterator[str]:
    """What is wrong with the answer, in words that are the same for the same fault."""
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
    if status >= 500 and not (status == 503 and code in _UNAVAILABLE | {"overloaded"}):
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
    """The error's stable name, of an envelope that is as it must be."""
    assert isinstance(body, dict)
    if path in LORAX_PATHS:
        assert body.keys() == {"error", "error_type"}
        message, code = body["error"], body["error_type"]
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
