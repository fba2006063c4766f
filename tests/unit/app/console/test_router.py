"""Files of the console: caching, compression, headers, and paths that the script reads."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.api import errors
from app.console import router
from app.console.assets import assets
from app.console.headers import SECURITY_HEADERS

SCRIPT = b"console.log('" + b"x" * 4000 + b"')"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small build and let the router use it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Tenora</title>")
    (tmp_path / "favicon.svg").write_text("<svg/>")
    (tmp_path / "assets" / "index-1a2b.js").write_bytes(SCRIPT)
    (tmp_path.parent / "secret.txt").write_text("secret")
    monkeypatch.setattr(router, "assets", lambda: assets(tmp_path))
    return tmp_path


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI()
    errors.install(app)
    app.include_router(router.router)
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/adapters/pricing", "/console/index.html"])
def test_every_page_is_the_same_document(build: Path, client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "Tenora" in answer.text
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_file_with_a_digest_is_kept_for_ever(build: Path, client: TestClient) -> None:
    answer = client.get("/console/assets/index-1a2b.js", headers={"accept-encoding": "identity"})
    assert (answer.content, "content-encoding" in answer.headers) == (SCRIPT, False)
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    with client.stream("GET", "/console/assets/index-1a2b.js", headers={"accept-encoding": "gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    assert packed.headers["content-encoding"] == "gzip"
    assert (len(raw) < 200, gzip.decompress(raw)) == (True, SCRIPT)
    assert client.get("/console/favicon.svg").headers["cache-control"] == "no-cache"


def test_a_file_of_another_release_is_not_a_page(build: Path, client: TestClient) -> None:
    answer = client.get("/console/assets/index-0000.js")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/console/../secret.txt", "/console/%2e%2e/secret.txt", "/console/..%2fsecret.txt"])
def test_no_path_leaves_the_build(build: Path, client: TestClient, path: str) -> None:
    assert "secret" not in client.get(path).text


@pytest.mark.parametrize("path", ["/console", "/console/assets/index-1a2b.js", "/console/favicon.svg", "/"])
def test_every_answer_has_the_security_headers(build: Path, client: TestClient, path: str) -> None:
    answer = client.get(path, headers=BROWSER, follow_redirects=False)
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    policy = answer.headers["content-security-policy"]
    assert not re.search("unsafe|nonce|sha256|http:|https:|\\*", policy)
    assert {"default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} <= set(
        policy.split("; ")
    )


def test_the_root_leads_only_browsers_to_the_console(build: Path, client: TestClient) -> None:
    browser = client.get("/", headers=BROWSER, follow_redirects=False)
    assert (browser.status_code, browser.headers["location"]) == (307, "/console")
    for accept in ("*/*", "application/json"):
        script = client.get("/", headers={"accept": accept}, follow_redirects=False)
        assert (script.status_code, script.json()["console"]) == (200, "/console")


def test_without_a_build_the_answer_says_so(
    tmp_path: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "assets", lambda: assets(tmp_path))
    answer = client.get("/console")
    assert (answer.status_code, "make console" in answer.text) == (404, True)
    assert client.get("/", headers=BROWSER, follow_redirects=False).status_code == 200
