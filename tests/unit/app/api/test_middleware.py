"""Request middleware: request ids, body caps, metrics and uncaught exceptions."""

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from adapters.cache import DiskCache
from adapters.stores.local import LocalStore
from app.api import errors
from app.api.middleware import RequestMiddleware
from app.services.operations.readiness import Readiness
from app.settings import BatchSettings, LimitSettings
from app.wiring.engine_metrics import Metrics
from tests.support.fresh_metrics import fresh_metrics
from tests.support.live_server import live_server
from tests.support.serving import NoEngine
from tests.support.site import Site, Unit, running_site

REQUEST_ID = re.compile(r"[0-9a-f]{32}")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of an application whose routes raise unexpected errors."""
    root = tmp_path_factory.mktemp("broken")
    with live_server(_broken_app(root)) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def _broken_app(root: Path) -> FastAPI:
    metrics = Metrics(NoEngine(), DiskCache(root, LocalStore(root / "blobs"), 2**20))
    gateway = SimpleNamespace(metrics=metrics, readiness=Readiness({}))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, object]]:
        yield {"gateway": gateway}

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(RequestMiddleware, limits=LimitSettings(body_bytes=1024), batch=BatchSettings())
    errors.install(app)

    @app.get("/fails")
    @app.post("/generate")
    async def fails() -> None:
        raise RuntimeError("SELECT secret FROM /a/path")

    @app.get("/breaks")
    async def breaks() -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield "half"
            raise RuntimeError("too late for an error")

        return StreamingResponse(body())

    return app


def test_the_unforeseen_is_logged_and_says_nothing_of_itself(
    broken: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = broken.get("/fails")
    assert answer.status_code == 500
    assert answer.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "secret" not in answer.text
    (record,) = [record for record in caplog.records if record.name == "app.api.middleware"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


def test_on_loraxs_routes_too(broken: httpx.Client) -> None:
    answer = broken.post("/generate")
    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == "generation"


def test_a_broken_answer_is_not_taken_for_a_whole_one(broken: httpx.Client) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        broken.get("/breaks")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health/live", 200),
        ("GET", "/admin/tenants", 401),
        ("GET", "/absent", 404),
        ("DELETE", "/health/live", 405),
        ("POST", "/v1/chat/completions", 401),
        ("POST", "/v1/responses", 401),
        ("POST", "/v1/messages", 401),
    ],
)
def test_every_answer_carries_an_id_that_the_server_made(site: Site, method: str, path: str, status: int) -> None:
    with site.client(None) as client:
        answers = [client.request(method, path, headers={"x-request-id": "mine"}) for _ in range(2)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert all(REQUEST_ID.fullmatch(request_id) for request_id in ids)
    assert {(answer.status_code, answer.headers["x-client-request-id"]) for answer in answers} == {(status, "mine")}


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
        *("/v1/tokenize", "/metrics", "/v1/models"),
    ],
)
def test_a_path_with_a_line_break_behind_it_is_none(site: Site, unit: Unit, path: str) -> None:
    """Starlette routes this path like the plain one, but our confidentiality and LoRAX checks need an exact match."""
    with site.client(unit.key) as client:
        answers = [client.request(method, f"{path}%0a", json={"prompt": "x"}) for method in ("GET", "POST")]
    assert [answer.status_code for answer in answers] == [404, 404]
    (message,) = {answer.json()["error"]["message"] for answer in answers}
    assert message == "This route does not exist. /docs lists the routes."


def test_a_clients_id_is_cleaned(site: Site) -> None:
    with site.client(None) as client:
        given = b"a\tb\xff" + b"c" * 500
        answer = client.get("/health/live", headers=[(b"x-request-id", given), (b"x-request-id", b"d" + given)])
        assert answer.headers.get_list("x-client-request-id") == ["d" + "ab" + "c" * 125]
        assert "x-client-request-id" not in client.get("/health/live").headers


def test_a_body_beyond_the_cap(site: Site, admin: httpx.Client) -> None:
    cap = site.settings.limits.body_bytes
    body = b" " * (cap + 1)
    headers = {"content-type": "application/json"}
    announced = admin.post("/admin/tenants", content=body, headers=headers)
    chunked = admin.post("/admin/tenants", content=iter([body[:cap], body[cap:]]), headers=headers)
    for answer in (announced, chunked):
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
        assert str(cap) in answer.json()["error"]["message"]
        assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])


def test_a_chunked_body_beyond_the_cap_on_an_inference_route(site: Site, unit: Unit) -> None:
    body = [b" " * 2**20] * 3
    with site.client(unit.key) as client:
        for path in ("/v1/completions", "/generate"):
            assert client.post(path, content=iter(body)).status_code == 413


def test_requests_are_counted_by_template(admin: httpx.Client, unit: Unit) -> None:
    assert admin.get(f"/admin/tenants/{unit.slug}").status_code == 200
    text = fresh_metrics(admin)
    labels = 'method="GET",route="/admin/tenants/{tenant}"'
    assert f'tenora_http_requests_total{{{labels},status="200"}}' in text
    assert f"tenora_http_request_duration_seconds_count{{{labels}}}" in text
    assert unit.slug not in text


def test_what_needs_no_key_and_is_refused_makes_no_series(base: Path, tmp_path: Path) -> None:
    with running_site(tmp_path, base) as site, site.client(None) as anonymous, site.client(site.admin_key) as admin:
        for method in ("GET", "POST", "PUT", "DELETE", "PROPFIND"):
            for path in (
                "/admin/tenants",
                "/v1/usage",
                "/v1/completions",
                "/metrics",
                "/health/live",
                "/nosuch/path",
            ):
                anonymous.request(method, path)
        admin.get("/admin/tenants/nosuch-slug")
        text = fresh_metrics(admin)
    shown = {line.partition(" ")[0] for line in text.splitlines() if line.startswith("tenora_http_request")}
    counted = {one for one in shown if one.startswith("tenora_http_requests_total")}
    assert counted == {
        f'tenora_http_requests_total{{method="GET",route="{route}",status="200"}}'
        for route in ("/health/live", "/metrics")
    }
    assert not any("nosuch" in one or 'route="none"' in one or "PROPFIND" in one for one in shown)
    found = dict(line.split(" ") for line in text.splitlines() if line.startswith("tenora_errors_total"))
    for code in ("invalid_api_key", "not_found", "method_not_allowed"):
        assert float(found[f'tenora_errors_total{{code="{code}"}}']) > 0
