"""Error responses and their envelopes."""

import inspect

import httpx
import pytest
from fastapi import HTTPException

import adapters.errors
import app.domain.errors
from adapters.errors import AdapterRejected, BlobNotFound, DiskFull, InvalidName, Reason, StoreUnavailable
from app.api.errors import error_response, lorax_body, openai_body, problem_of
from app.domain.errors import (
    ROWS,
    AdapterQuarantined,
    Busy,
    Conflict,
    EngineUnavailable,
    InvalidRequest,
    QueueFull,
    TooLarge,
)
from tests.support.site import Site, Unit


def _leaves(module: object, base: type[Exception]) -> list[type[Exception]]:
    classes = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, base)]
    return [kind for kind in classes if not any(issubclass(other, kind) and other is not kind for other in classes)]


@pytest.mark.parametrize(
    "leaf",
    _leaves(app.domain.errors, app.domain.errors.TenoraError) + _leaves(adapters.errors, adapters.errors.AdapterError),
    ids=lambda leaf: leaf.__name__,
)
def test_every_leaf_has_a_row(leaf: type[Exception]) -> None:
    assert leaf in ROWS


def test_every_row_is_a_leafs_and_has_a_code_of_its_own() -> None:
    leaves = _leaves(app.domain.errors, app.domain.errors.TenoraError) + _leaves(
        adapters.errors, adapters.errors.AdapterError
    )
    assert set(ROWS) == set(leaves)
    codes = [row.code for row in ROWS.values()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", [BlobNotFound, DiskFull, StoreUnavailable])
def test_words_of_stores_and_disks_stay_inside(error: type[Exception]) -> None:
    problem = problem_of(error("bucket s3://internal, /var/lib/path: AccessDenied"))
    assert problem.row.status == 503
    assert "internal" not in problem.message


@pytest.mark.parametrize(
    ("error", "status", "header", "value"),
    [
        (Conflict("no"), 409, "x-should-retry", "false"),
        (AdapterQuarantined("no"), 409, "x-should-retry", "false"),
        (EngineUnavailable("soon", retry_after=7), 503, "retry-after", "7"),
        (Busy("soon"), 503, "retry-after", "5"),
        (QueueFull("queue: found 9", retry_after=3), 429, "retry-after", "3"),
        (StoreUnavailable("soon"), 503, "retry-after", "5"),
        (StoreUnavailable("soon", retry_after=9), 503, "retry-after", "9"),
        (TooLarge("no"), 413, "connection", "close"),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "allow", "GET"),
    ],
)
def test_headers_tell_clients_what_to_do(error: Exception, status: int, header: str, value: str) -> None:
    answer = error_response("/v1/models", error)
    assert (answer.status_code, answer.headers[header]) == (status, value)


def test_a_rejection_lists_its_reasons() -> None:
    reasons = (
        Reason("rank_too_large", "r", "rank 65", "at most 64"),
        Reason("rank_mismatch", "a", "rank 8", "4", count=9, examples=("a", "b", "c")),
    )
    error = openai_body(problem_of(AdapterRejected(reasons)))["error"]
    assert error["message"] == f"{reasons[0].message} There is 1 more reason."
    assert error["reasons"][1] == {
        "code": "rank_mismatch",
        "field": "a",
        "found": "rank 8",
        "allowed": "4",
        "message": "a has rank 8, but must have 4. Upload the config and the weights of the same save. "
        "The same holds for 8 more, such as b and c.",
        "count": 9,
        "examples": ["a", "b", "c"],
    }


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (InvalidRequest("no"), "validation"),
        (InvalidName("model", "x", "y"), "validation"),
        (TooLarge("no"), "validation"),
        (EngineUnavailable("soon"), "overloaded"),
        (QueueFull("no"), "overloaded"),
        (RuntimeError("unforeseen"), "generation"),
        (app.domain.errors.NotFound("no"), "not_found"),
        (app.domain.errors.Unauthenticated("no"), "invalid_api_key"),
    ],
)
def test_loraxs_clients_get_the_types_that_they_know(error: Exception, error_type: str) -> None:
    body = lorax_body(problem_of(error))
    assert body == {"error": problem_of(error).message, "error_type": error_type}


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
def test_loraxs_routes_have_loraxs_envelope(site: Site, path: str) -> None:
    with site.client(None) as client:
        answer = client.post(path, json={"inputs": "x"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json()) == {"error", "error_type"}


def test_absent_routes_and_wrong_methods(admin: httpx.Client) -> None:
    for path in ("/absent", "/v1/absent", "/admin/absent", "/v1/models/../absent"):
        answer = admin.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    answer = admin.put("/admin/tenants")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"slug": "\xff"}', "application/json"),
        (b'{"slug": 1' + b"0" * 10_000 + b"}", "application/json"),
        (b"[]", "application/json"),
        (b"", "application/json"),
        (b"slug=x", "application/x-www-form-urlencoded"),
        (b'{"slug": "x"}', "text/plain"),
    ],
)
def test_bodies_that_are_no_json_objects(admin: httpx.Client, body: bytes, content_type: str) -> None:
    answer = admin.post("/admin/tenants", content=body, headers={"content-type": content_type})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


def test_a_refused_body_names_wrong_fields_without_values(admin: httpx.Client) -> None:
    body = {"slug": ["a", "b"], "name": 7, "disabled": True, "id": "x" * 500}
    error = admin.post("/admin/tenants", json=body).json()["error"]
    assert error["param"] == "slug"
    assert [(reason["field"], reason["found"], reason["allowed"]) for reason in error["reasons"]] == [
        ("slug", "a list", "a valid string"),
        ("name", "7", "a valid string"),
        ("disabled", "true", "no such field"),
        ("id", f'"{"x" * 79}...', "no such field"),
    ]


def test_a_missing_field_and_a_wrong_parameter(admin: httpx.Client) -> None:
    error = admin.post("/admin/tenants", json={}).json()["error"]
    assert error["message"] == "The request is invalid. slug is missing. Send a value for it."
    for query in ("limit=0", "limit=201", "limit=x", "cursor=!"):
        answer = admin.get(f"/admin/tenants?{query}")
        assert answer.status_code in {400, 422}
        assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_platform_key_on_a_tenants_route_is_told_the_way(site: Site, admin: httpx.Client) -> None:
    inference = admin.post("/v1/completions", json={"prompt": "x"})
    adapters = admin.get("/v1/adapters")
    assert (inference.status_code, adapters.status_code) == (403, 403)
    words = "This is a platform key; this route needs a tenant's key with the scope"
    assert inference.json()["error"]["message"] == f"{words} inference."
    assert adapters.json()["error"]["message"] == (
        f"{words} adapters:read. The same route under /admin/tenants/TENANT accepts a platform key."
    )


def test_a_wrong_time_is_answered_with_an_example(admin: httpx.Client) -> None:
    error = admin.get("/admin/usage", params={"from": "yesterday"}).json()["error"]
    assert error["message"] == (
        'The request is invalid. from is "yesterday", but must be a time such as 2026-11-29T10:00:00Z.'
    )


def test_a_mistyped_scope_is_answered_with_the_nearest(admin: httpx.Client, unit: Unit) -> None:
    body = {"name": "x", "scopes": ["inference", "adapters:wirte"]}
    error = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["error"]
    assert error["message"].endswith("keys:write. Did you mean adapters:write?")
    unlike = admin.post(f"/admin/tenants/{unit.slug}/keys", json=body | {"scopes": ["root"]}).json()["error"]
    assert unlike["message"].endswith("keys:write.")
