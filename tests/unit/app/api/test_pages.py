"""Pages for people and browsers: ``/``, ``/docs``, alternative route spellings, and CORS."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.site import Site, Unit, running_site

ORIGIN = "https://app.example.org"


def test_the_root_says_what_this_is(site: Site) -> None:
    with site.client(None) as client:
        about = client.get("/").json()
        assert about["name"] == "Tenora"
        assert client.get(about["docs"]).status_code == 200
        assert client.get(about["openapi"]).json()["info"]["title"] == "Tenora"
        # LoRAX clients post to ``/`` and expect LoRAX's error envelope.
        assert client.post("/").json().keys() == {"error", "error_type"}


def test_the_docs_load_nothing_from_elsewhere(site: Site) -> None:
    with site.client(None) as client:
        page = client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "://" not in page.text
        assert '"validatorUrl": null' in page.text
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        kinds = {name.rpartition(".")[2]: client.get(name) for name in files}
        assert {kind: answer.status_code for kind, answer in kinds.items()} == {"js": 200, "css": 200, "png": 200}
        assert kinds["js"].headers["content-type"] == "text/javascript; charset=utf-8"
        # A Swagger UI release that reads OpenAPI 3.1.
        assert "SwaggerUIBundle" in kinds["js"].text
        assert "json-schema-2020-12" in kinds["js"].text
        # Everything that the style sheet references is inlined.
        assert all(name.lstrip("\"'").startswith("data:") for name in re.findall(r"url\(([^)]+)", kinds["css"].text))
        assert [client.get(path).status_code for path in ("/docs/main.py", "/docs/%2e%2e%2fmain.py", "/redoc")] == [
            404, 404, 404,
        ]  # fmt: skip


def test_other_spellings_of_routes(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as client:
        assert client.get("/health").json() == client.get("/health/live").json()
        assert client.get("/v1/models/").json() == client.get("/v1/models").json()
    with site.client(None) as client:
        assert client.get("/v1/models/").status_code == 401


@pytest.fixture(scope="module")
def open_site(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("cors"), base, cors_origins=[ORIGIN]) as site:
        yield site


def ask(
    site: Site, origin: str, *, method: str = "GET", path: str = "/v1/models", body: bytes = b"", **more: str
) -> httpx.Response:
    with site.client(None) as client:
        return client.request(method, path, headers={"origin": origin, **more}, content=body)


def test_no_page_may_call_unless_it_is_said(site: Site) -> None:
    preflight: dict[str, Any] = {"access-control-request-method": "POST"}
    answers = [ask(site, ORIGIN), ask(site, ORIGIN, method="OPTIONS", path="/v1/completions", **preflight)]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control")]


def test_the_pages_of_the_origins_may_call(open_site: Site) -> None:
    preflight: dict[str, Any] = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    asked = ask(open_site, ORIGIN, method="OPTIONS", path="/v1/completions", **preflight)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in asked.headers["access-control-allow-headers"]
    # CORS headers are on errors too, so that a page can read them.
    refused = ask(open_site, ORIGIN)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in refused.headers
    early = ask(open_site, ORIGIN, method="POST", body=b"x", **{"content-encoding": "br"})
    assert (early.status_code, early.headers["access-control-allow-origin"]) == (415, ORIGIN)


@pytest.mark.parametrize("origin", ["https://evil.example.org", "http://app.example.org", "null", f"{ORIGIN}.evil"])
def test_other_pages_may_not(open_site: Site, origin: str) -> None:
    assert "access-control-allow-origin" not in ask(open_site, origin).headers
