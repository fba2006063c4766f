"""Attacks on the console's files: no other file, no page inside another site, nothing that a cache may mix up."""

import httpx
import pytest

from tests.support.site import Site

#: Ways out of the folder of the build, and files next to it.
PATHS = (
    "../../pyproject.toml",
    "..%2f..%2fpyproject.toml",
    "%2e%2e/%2e%2e/pyproject.toml",
    "....//....//pyproject.toml",
    "..\\..\\pyproject.toml",
    "assets/../../router.py",
    "assets/%2e%2e/%2e%2e/router.py",
    "assets//etc/passwd",
    "/etc/passwd",
    "assets/../index.html%00.js",
    "assets/%e2%80%a5/router.py",
    "web/package.json",
    "static/index.html",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_another_file(site: Site, path: str) -> None:
    with site.client(None) as client:
        page = client.get("/console").text
        # httpx would normalize the path.
        url = httpx.URL(site.url).copy_with(raw_path=f"/console/{path}".encode())
        answer = client.get(url)
        assert answer.status_code in {200, 400, 404}
        if answer.status_code == 200:
            assert answer.text == page


@pytest.mark.parametrize("path", ["/console", "/console/t/other/keys", "/console/assets/nothing.js", "/"])
def test_no_other_site_frames_or_reads_the_page(site: Site, path: str) -> None:
    headers = {"accept": "text/html", "origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    with site.client(None) as client:
        answer = client.get(path, headers=headers)
    assert not any(name.startswith("access-control-") for name in answer.headers)
    if answer.status_code == 200:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "require-trusted-types-for 'script'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "query", ["?next=https://evil.example", "?key=tnr_x", "//evil.example", "/%0d%0aset-cookie:x=1"]
)
def test_an_address_changes_nothing_in_the_page(site: Site, query: str) -> None:
    with site.client(None) as client:
        page = client.get("/console")
        url = httpx.URL(site.url).copy_with(raw_path=f"/console{query}".encode())
        answer = client.get(url)
    assert (answer.status_code, answer.text) == (200, page.text) or answer.status_code == 404
    assert "set-cookie" not in answer.headers
    assert "location" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_files_cannot_be_changed(site: Site, method: str) -> None:
    with site.client(site.admin_key) as client:
        for path in ("/console", "/console/index.html", "/console/assets/x.js"):
            assert client.request(method, path, content=b"x").status_code == 405
