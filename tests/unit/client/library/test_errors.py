"""Errors of the library: wrong addresses, keys and releases, and a server that is not there."""

import asyncio
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tenora_client import (
    AsyncClient,
    AuthenticationError,
    Client,
    ConfigurationError,
    ConnectionFailed,
    ForeignAnswer,
    NoAdapter,
    NotFound,
    PermissionDenied,
    Progress,
    RateLimited,
    Refused,
    ServerError,
    TenoraError,
    VersionMismatch,
    __version__,
    errors,
)
from tests.support.live_server import live_server
from tests.support.site import Site, Unit

KEY = "tnr_abc_secret"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


@contextmanager
def served(routes: dict[str, Callable[[Request], Any]]) -> Iterator[str]:
    """Run a server with these routes, all others answering as an older release does."""
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def route(path: str, request: Request) -> Response:
        if path in routes:
            return routes[path](request)
        error = {"message": "This route does not exist.", "type": "not_found_error", "param": None, "code": "not_found"}
        return JSONResponse({"error": error}, 404)

    with live_server(app) as url:
        yield url


def told(version: str) -> Callable[[Request], Any]:
    return lambda _: JSONResponse({"version": version})


def until_refused(tenora: Client) -> None:
    while True:
        tenora.limits()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "Write http://localhost:8000"),
        ("ftp://host", "not a valid address"),
        ("http://", "not a valid address"),
        ("http://host:port", "not a valid address"),
    ],
)
def test_an_address_that_is_none_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Client(url, KEY)


def test_a_missing_or_odd_key_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"no key for http://h. .* TENORA_KEY"):
        Client("http://h")
    with pytest.raises(ConfigurationError, match="not printable ASCII"):
        Client("http://h", "tnr_ü")
    monkeypatch.setenv("TENORA_URL", "http://elsewhere/")
    monkeypatch.setenv("TENORA_KEY", KEY)
    with Client() as tenora:
        assert tenora.url == "http://elsewhere"
        assert "secret" not in repr(tenora)


def test_a_server_that_is_not_there_is_named() -> None:
    url = closed_port()
    with Client(url, KEY, retries=0) as tenora, pytest.raises(ConnectionFailed, match=f"Cannot reach {url}") as failed:
        tenora.adapters.show("quotes")
    assert failed.value.status is None


async def test_the_asynchronous_client_names_it_too() -> None:
    async with AsyncClient(closed_port(), KEY, retries=0) as tenora:
        with pytest.raises(ConnectionFailed, match="Cannot reach"):
            await tenora.chat("quotes", "hello")
        with pytest.raises(ConnectionFailed, match="Cannot reach"):
            [name async for name in tenora.adapters.list()]


def test_a_wrong_and_an_expired_key_are_refused(site: Site, platform: Client, unit: Unit) -> None:
    with Client(site.url, unit.key[:-6] + "AAAAAA") as tenora, pytest.raises(AuthenticationError) as refused:
        tenora.adapters.show("quotes")
    assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
    old = platform.keys.create("old", tenant=unit.slug, expires_in_s=1)
    with Client(site.url, old.key) as tenora, pytest.raises(AuthenticationError):
        until_refused(tenora)


def test_a_key_of_another_tenant_sees_nothing(site: Site, platform: Client, unit: Unit, folder: Path) -> None:
    platform.adapters.publish("quotes", folder, tenant=unit.slug)
    platform.tenants.create(f"{unit.slug}-b")
    other = platform.keys.create("other", tenant=f"{unit.slug}-b", scopes=["adapters:read"])
    with Client(site.url, other.key) as tenora:
        with pytest.raises(NotFound) as refused:
            tenora.adapters.show("quotes")
        assert refused.value.param == "adapter"
        with pytest.raises(NotFound):
            tenora.adapters.show("quotes", tenant=unit.slug)
        with pytest.raises(PermissionDenied, match="adapters:write"):
            tenora.adapters.promote("quotes", 1)


def test_a_stopped_engine_is_a_server_error(site: Site, unit: Unit) -> None:
    with Client(site.url, unit.key, retries=0) as tenora:
        with pytest.raises(ServerError) as refused:
            tenora.chat("", "hello", max_tokens=1)
        assert (refused.value.code, refused.value.retry_after) == ("engine_unavailable", 7)
        with pytest.raises(ServerError):
            next(iter(tenora.stream_complete("", "hello")))


def test_a_missing_adapter_is_found_before_anything_is_sent(tenora: Client, tmp_path: Path) -> None:
    with pytest.raises(NoAdapter, match="does not exist"):
        tenora.adapters.publish("quotes", tmp_path / "nowhere")
    assert issubclass(NoAdapter, TenoraError)


@pytest.mark.parametrize(("version", "step"), [("0.2.0", "Upgrade the server"), ("99.0.0", "Upgrade the client")])
def test_a_missing_route_names_both_releases(version: str, step: str) -> None:
    with served({"v1/server": told(version)}) as url, Client(url, KEY) as tenora:
        with pytest.raises(VersionMismatch) as mismatch:
            tenora.limits()
        assert f"Tenora {version}" in str(mismatch.value)
        assert f"tenora-client {__version__}" in str(mismatch.value)
        assert "no route GET /v1/limits" in str(mismatch.value)
        assert step in str(mismatch.value)
        with pytest.raises(VersionMismatch):
            list(tenora.adapters.list())


def test_a_server_that_tells_no_release_is_older() -> None:
    with served({}) as url, Client(url, KEY) as tenora:
        with pytest.raises(VersionMismatch, match=r"does not tell its version.*Upgrade the server") as mismatch:
            tenora.limits()
        assert mismatch.value.server_version is None


def test_an_answer_of_another_form_names_both_releases() -> None:
    report = {"currency": "EUR", "tenant": "many", "key": [], "more": 1}
    routes = {"v1/server": told("99.0"), "v1/limits": lambda _: JSONResponse(report)}
    with (
        served(routes) as url,
        Client(url, KEY) as tenora,
        pytest.raises(VersionMismatch, match=r"Expected `array`.*Upgrade the client"),
    ):
        tenora.limits()


def test_unknown_and_absent_fields_are_understood() -> None:
    report = {"currency": "EUR", "tenant": [{"limit": "l", "allowed": 1, "remaining": "2", "new": {}}], "key": []}
    with served({"v1/limits": lambda _: JSONResponse(report)}) as url, Client(url, KEY) as tenora:
        (left,) = tenora.limits().tenant
    assert (left.allowed, left.remaining, left.used) == (1, "2", None)


def test_another_server_is_not_taken_for_tenora() -> None:
    with (
        served({"v1/limits": lambda _: Response("<html>nginx</html>", 200)}) as url,
        Client(url, KEY) as tenora,
        pytest.raises(ForeignAnswer, match="not from a Tenora server"),
    ):
        tenora.limits()


def test_a_busy_server_is_asked_again() -> None:
    calls: list[str] = []

    def busy(request: Request) -> Response:
        calls.append(request.headers.get("idempotency-key", ""))
        if len(calls) < 3:
            return JSONResponse({"error": {"message": "Busy."}}, 503, {"retry-after": "0"})
        return JSONResponse({"slug": "a"}, 201)

    with served({"admin/tenants": busy, "v1/server": told("99.0")}) as url, Client(url, KEY) as tenora:
        with pytest.raises(VersionMismatch):
            tenora.tenants.create("a")
        assert len(calls) == 3
        assert len(set(calls)) == 1
        assert len(calls[0]) == 32


@pytest.mark.parametrize(("headers", "said"), [({"retry-after": "3600"}, 3600), ({"x-should-retry": "false"}, None)])
def test_a_long_wait_is_left_to_the_caller(headers: dict[str, str], said: float | None) -> None:
    calls: list[int] = []

    def limited(_: Request) -> Response:
        calls.append(1)
        error = {"message": "Budget used.", "type": "insufficient_quota", "code": "insufficient_quota", "param": None}
        return JSONResponse({"error": error}, 429, headers)

    with served({"v1/chat/completions": limited}) as url, Client(url, KEY) as tenora:
        with pytest.raises(RateLimited, match="Budget used") as refused:
            tenora.chat("quotes", "hello")
        assert refused.value.retry_after == said
    assert len(calls) == 1


def test_a_proxy_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, site: Site, unit: Unit) -> None:
    monkeypatch.setenv("HTTP_PROXY", closed_port())
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with (
        Client("http://tenora.invalid", KEY, retries=0) as tenora,
        pytest.raises(ConnectionFailed, match="the proxy that HTTP_PROXY names"),
    ):
        tenora.limits()
    with Client(site.url, unit.key) as tenora:  # proxies are for other machines
        assert tenora.limits().key == []


def test_a_proxy_that_is_none_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://proxy")
    with pytest.raises(ConfigurationError, match="HTTP_PROXY"):
        Client("http://tenora.invalid", KEY)


EXPORT = """
import resource, sys
from tenora_client import Client
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with Client(sys.argv[1], sys.argv[2]) as tenora:
    try:
        tenora.adapters.export("quotes", 1, sys.argv[3])
    except OSError as error:
        print(error.strerror)
"""


def test_a_full_disk_leaves_nothing_behind(
    site: Site, tenora: Client, unit: Unit, folder: Path, tmp_path: Path
) -> None:
    """A limit of the size of files stands in for the disk: the same call fails in the same way."""
    tenora.adapters.publish("quotes", folder)
    out = tmp_path / "out" / "adapter"
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, site.url, unit.key, out], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "File too large"
    assert list(out.parent.iterdir()) == []


def test_errors_survive_pickling() -> None:
    body = {"error": {"message": "No.", "type": "not_found_error", "param": "adapter", "code": "not_found"}}
    error = errors.refusal(404, body, "r1", 3.0)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is NotFound
    assert (str(copy), copy.param, copy.request_id, copy.retry_after) == (str(error), "adapter", "r1", 3.0)
    mismatch = pickle.loads(pickle.dumps(VersionMismatch("No.", "1", None)))  # noqa: S301
    assert (str(mismatch), mismatch.client_version) == ("No.", "1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, ServerError),
        (400, errors.InvalidRequest),
        (410, errors.Conflict),
        (413, errors.InvalidRequest),
        (502, ServerError),
    ],
)
def test_every_status_has_its_error(status: int, kind: type[Refused]) -> None:
    assert type(errors.refusal(status, {"error": "text"})) is kind


def test_an_error_inside_a_stream_has_its_class() -> None:
    error = {"message": "Ended.", "type": "authentication_error", "code": "invalid_api_key", "param": None}
    assert type(errors.refusal(200, {"error": error})) is AuthenticationError


async def test_a_cancelled_publication_stops(site: Site, unit: Unit, folder: Path) -> None:
    async with AsyncClient(site.url, unit.key) as tenora:
        site.engine.may_smoke.clear()
        sent = asyncio.Event()

        def note(progress: Progress) -> None:
            if progress.phase == "checking":
                sent.set()

        task = asyncio.create_task(tenora.adapters.publish("quotes", folder, on_progress=note))
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        site.engine.may_smoke.set()
        assert (await tenora.adapters.publish("quotes", folder)).number == 1
