"""API fuzzing with some hundreds of calls per run.

``python -m tests.fuzz.api --calls 50000`` is the long form.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from requests.adapters import HTTPAdapter

from tests.fuzz.api.__main__ import without_engine
from tests.fuzz.api.judge import Call, complaints
from tests.fuzz.api.runner import fuzz

_CALLS = 600

_ENVELOPE = {"error": {"message": "no", "type": "t", "param": None, "code": "not_found"}}
_DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {
        "/v1/things": {
            "get": {
                "responses": {
                    "200": {"description": "", "content": {"application/json": {"schema": {"type": "object"}}}},
                    **{status: {"description": ""} for status in ("404", "409", "429", "500", "503")},
                }
            }
        }
    },
}


def test_every_answer_is_as_described(tmp_path: Path) -> None:
    with without_engine(tmp_path) as target:
        report = fuzz(target, calls=_CALLS, number=1)
    assert {key: finding.first for key, finding in report.findings.items()} == {}
    assert report.count == _CALLS
    # If all calls of an operation were refused at the first check, the code behind it would be untested.
    succeeded = [label for label, statuses in report.statuses.items() if any(status < 300 for status in statuses)]
    assert len(succeeded) > len(report.statuses) / 4
    assert all(statuses for statuses in report.statuses.values())


def _call(
    status: int, body: Any, *, caller: str = "admin", described: bool = True, headers: dict[str, str] | None = None
) -> Call:
    schema = schemathesis.openapi.from_dict(_DOCUMENT)
    request = requests.Request("GET", "http://server/v1/things").prepare()
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "x-request-id": "1"} | (headers or {})
    sent = urllib3.HTTPResponse(io.BytesIO(raw), fields, status, preload_content=False)
    answer = HTTPAdapter().build_response(request, sent)
    case = schema["/v1/things"]["GET"].Case()
    return Call(case, caller, request, answer, described, "/secret/home")


@pytest.mark.parametrize(
    "call",
    [
        _call(200, {}),
        _call(404, _ENVELOPE),
        _call(503, {"error": _ENVELOPE["error"] | {"code": "busy"}}, headers={"retry-after": "1"}),
        _call(200, {}, caller="no key", described=False),
    ],
)
def test_a_right_answer_has_no_complaint(call: Call) -> None:
    assert list(complaints(call)) == []


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (_call(200, []), "200: Response violates schema"),
        (_call(200, {}, headers={"content-type": "text/html"}), "200: Undocumented Content-Type"),
        (_call(200, {}, headers={"x-request-id": ""}), "no x-request-id"),
        (_call(200, {}, caller="no key"), "200 for no key"),
        (_call(418, _ENVELOPE), "418: Undocumented status code"),
        (_call(404, b"Not Found"), "404 without the envelope"),
        (_call(404, {"detail": "Not Found"}), "404 without the envelope"),
        (_call(404, _ENVELOPE, headers={"content-type": "text/plain"}), "404 as text/plain"),
        (_call(409, _ENVELOPE), "409 without x-should-retry"),
        (_call(429, _ENVELOPE), "429 without retry-after"),
        (_call(500, _ENVELOPE), "500 not_found"),
        (_call(503, _ENVELOPE, headers={"retry-after": "1"}), "503 not_found"),
        (_call(404, {"error": _ENVELOPE["error"] | {"message": "/secret/home/x"}}), "'/secret/home' in an error"),
    ],
)
def test_a_wrong_answer_is_complained_about(call: Call, complaint: str) -> None:
    assert any(found.startswith(complaint) for found in complaints(call)), list(complaints(call))
