"""The nginx configuration for clients outside: TLS, limits per client, and no routes of the inside."""

import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.nginx import CONFIGURATION, PUBLIC, running_public_nginx
from tests.support.s3server import Script, scripted_server
from tests.support.server import until


@dataclass(frozen=True)
class Site:
    """nginx in front of scripted servers."""

    url: str
    certificate: Path
    servers: list[Script]

    def client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=self.certificate)
        return httpx.Client(base_url=self.url, verify=context, trust_env=False, timeout=30)

    def asked(self) -> int:
        return sum(len(server.asked) for server in self.servers)


@contextmanager
def site(
    folder: Path,
    *answers: list[tuple[int, bytes]],
    changes: Mapping[str, str] | None = None,
    further: Sequence[int] = (),
) -> Iterator[Site]:
    """Run nginx in front of scripted servers, and of further ports."""
    with ExitStack() as stack:
        servers = [stack.enter_context(scripted_server(Script(list(given)))) for given in answers]
        ports = [int(server.url.rpartition(":")[2]) for server in servers]
        url = stack.enter_context(running_public_nginx(folder, [*further, *ports], changes))
        found = Site(url, folder / "certificate.pem", servers)
        with found.client() as client:
            until(lambda: _listens(client), 60)
        for server in servers:
            server.asked.clear()
        yield found


def _listens(client: httpx.Client) -> bool:
    try:
        return client.get("/health/live").status_code > 0
    except httpx.ConnectError:
        return False


OK = [(200, b"yes")]


@pytest.mark.parametrize(
    "path",
    [
        "/admin",
        "/admin/tenants",
        "/metrics",
        "/docs",
        "/docs/swagger-ui.css",
        "/openapi.json",
        "//admin/tenants",
        "/%61dmin/tenants",
        "/v1/../admin/tenants",
        "/v1/%2e%2e/admin/tenants",
        "/v1/..%2fadmin/tenants",
        "/./metrics",
        "/metrics?x=/v1/models",
    ],
)
def test_routes_of_the_inside_are_unknown(tmp_path: Path, path: str) -> None:
    with site(tmp_path, OK) as outside, outside.client() as client:
        # httpx would normalize the path.
        url = httpx.URL(outside.url).copy_with(raw_path=path.encode())
        answer = client.get(url)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
        assert outside.asked() == 0
        assert client.get("/v1/models").text == "yes"
        assert client.get("/administrators").text == "yes"


def test_too_many_requests_of_an_address_get_429(tmp_path: Path) -> None:
    changes = {"rate=50r/s": "rate=1r/m", "burst=200": "burst=5"}
    with site(tmp_path, OK, changes=changes) as outside, outside.client() as client:
        statuses = [client.get("/v1/models").status_code for _ in range(10)]
        # The request that waited for nginx's start was one of the burst.
        assert statuses == [200] * 5 + [429] * 5
        assert outside.asked() == 5


def test_too_many_open_requests_get_429(tmp_path: Path) -> None:
    with site(tmp_path, OK, changes={"tenora_tls_clients 512": "tenora_tls_clients 1"}) as outside:
        (server,) = outside.servers
        server.stall = True
        with ThreadPoolExecutor() as pool, outside.client() as client, outside.client() as other:
            waiting = pool.submit(client.get, "/v1/models")
            until(lambda: outside.asked() == 1, 30)
            assert other.get("/v1/models").status_code == 429
            assert not waiting.done()
            server.over.set()


def test_a_client_cannot_choose_its_address(tmp_path: Path) -> None:
    with site(tmp_path, OK) as outside, outside.client() as client:
        headers = {
            "x-forwarded-for": "10.1.2.3",
            "connection": "Upgrade",
            "upgrade": "h2c",
            "x-forwarded-proto": "http",
        }
        client.post("/v1/completions", content=b"{}", headers=headers)
        [(_, seen)] = outside.servers[0].asked
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert seen["x-forwarded-proto"] == "https"
        assert "upgrade" not in seen


def test_old_tls_and_plain_text_are_refused(tmp_path: Path) -> None:
    with site(tmp_path, OK) as outside:
        context = ssl.create_default_context(cafile=outside.certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with httpx.Client(verify=context, trust_env=False) as client:
            answer = client.get(f"{outside.url}/v1/models")
            assert answer.status_code == 200
            assert answer.headers["strict-transport-security"]
            assert "/" not in answer.headers["server"]
        with httpx.Client(trust_env=False) as client:
            assert client.get(f"http{outside.url.removeprefix('https')}/v1/models").status_code == 400


@pytest.mark.parametrize(("path", "again"), [("/v1/completions", True), ("/v1/adapters/x/versions", False)])
def test_a_busy_server_sends_inference_elsewhere(tmp_path: Path, path: str, again: bool) -> None:
    with site(tmp_path, [(503, b"no")], [(503, b"no")]) as outside, outside.client() as client:
        assert client.post(path, content=b"{}").status_code == 503
        assert outside.asked() == (2 if again else 1)


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that drops further connections, like the address of a stopped container: its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as stack:
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


def test_requests_go_past_a_silent_address(tmp_path: Path) -> None:
    with silent_port() as port, site(tmp_path, OK, further=[port]) as outside, outside.client() as client:
        asked = [client.post(path, content=b"{}") for path in ("/v1/completions", "/v1/models") for _ in range(3)]
        assert [answer.status_code for answer in asked] == [200] * 6
        # Every other request tried the silent address first.
        slow = [answer for answer in asked if answer.elapsed.total_seconds() > 1.5]
        assert len(slow) >= 2


def test_inference_that_is_silent_is_asked_once(tmp_path: Path) -> None:
    changes = {
        "proxy_read_timeout 900s": "proxy_read_timeout 3s",
        "next_upstream_timeout 600s": "next_upstream_timeout 2s",
    }
    with site(tmp_path, OK, OK, changes=changes) as outside, outside.client() as client:
        for server in outside.servers:
            server.stall = True
        assert client.post("/v1/completions", content=b"{}").status_code == 504
        assert outside.asked() == 1
        for server in outside.servers:
            server.over.set()


def test_both_files_treat_the_servers_alike() -> None:
    def directives(path: Path) -> set[str]:
        return set(re.findall(r"^\s*(proxy_\w+ .*;|location .*\{)$", path.read_text(), re.MULTILINE))

    extra = directives(PUBLIC) - directives(CONFIGURATION)
    assert directives(CONFIGURATION) <= directives(PUBLIC)
    assert [line.split("{")[0].strip()[:24] for line in extra] == ["location ~ ^/(admin|metr"]
