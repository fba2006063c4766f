"""Proxies of the environment: used for other machines, passed over for this one, and named if they fail."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenora_client.proxies import is_local
from tests.support.cli import Tenora
from tests.support.http_proxy import HttpProxy, http_proxy

#: Only a proxy can answer for this host.
ELSEWHERE = "http://tenora.invalid"
DEAD = "http://user:hunter2@127.0.0.1:9"
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def proxy(site: tuple[str, str]) -> Iterator[HttpProxy]:
    with http_proxy(site[0]) as proxy:
        yield proxy


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_another_machine_is_reached_through_the_proxy(tenora: Tenora, proxy: HttpProxy, variable: str) -> None:
    variables: dict[str, Any] = {variable: proxy.url}
    tenora("tenants", "list", TENORA_URL=ELSEWHERE, **variables)
    assert len(proxy.seen) == 1
    assert proxy.seen[0].startswith(f"{ELSEWHERE}/admin/tenants")


def test_a_push_goes_through_the_proxy(
    tenora: Tenora, proxy: HttpProxy, adapter_folder: Path, new_slug: Callable[[], str]
) -> None:
    tenant = new_slug()
    tenora("tenants", "create", tenant)
    push = ("adapters", "push", str(adapter_folder), "--adapter", "prices", "--tenant", tenant)
    assert tenora.json(*push, TENORA_URL=ELSEWHERE, HTTP_PROXY=proxy.url)["name"] == "prices@1"
    assert len([url for url in proxy.seen if "/parts/" in url]) == 2


@pytest.mark.parametrize("hosts", ["tenora.invalid", "*", "other,.invalid"])
def test_no_proxy_excepts_a_host(tenora: Tenora, proxy: HttpProxy, hosts: str) -> None:
    variables: dict[str, Any] = {"TENORA_URL": ELSEWHERE, "HTTP_PROXY": proxy.url, "NO_PROXY": hosts}
    error = tenora("tenants", "list", exit_code=3, **variables).stderr
    assert "give another address with --url" in error
    assert "PROXY" not in error
    assert proxy.seen == []


def test_a_server_on_this_machine_takes_no_proxy(tenora: Tenora, proxy: HttpProxy, site: tuple[str, str]) -> None:
    tenora("tenants", "list", HTTP_PROXY=proxy.url)
    tenora("tenants", "list", HTTP_PROXY=proxy.url, TENORA_URL=site[0].replace("127.0.0.1", "localhost"))
    assert proxy.seen == []


@pytest.mark.parametrize(
    ("url", "variable"),
    [(ELSEWHERE, "HTTP_PROXY"), ("https://tenora.invalid", "HTTPS_PROXY"), (ELSEWHERE, "ALL_PROXY")],
)
def test_a_dead_proxy_is_named(tenora: Tenora, url: str, variable: str) -> None:
    variables: dict[str, Any] = {"TENORA_URL": url, variable: DEAD}
    error = tenora("tenants", "list", exit_code=3, **variables).stderr
    assert error.startswith(f"error: Cannot reach {url} through the proxy that {variable} names: ")
    assert error.endswith(f". Check {variable}, or name the server's host in NO_PROXY.\n")
    assert error.count("\n") == 1
    assert "hunter2" not in error


def test_a_proxy_without_a_tunnel_is_named(tenora: Tenora, proxy: HttpProxy) -> None:
    """The proxy does not know the method CONNECT, which HTTPS needs."""
    error = tenora("tenants", "list", exit_code=3, TENORA_URL="https://tenora.invalid", HTTPS_PROXY=proxy.url).stderr
    assert "the proxy that HTTPS_PROXY names: 501" in error


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.2", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example", False),
    ],
)
def test_this_machine_is_known_by_its_addresses(url: str, local: bool) -> None:
    assert is_local(url) is local
