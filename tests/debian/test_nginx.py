"""Two servers behind nginx, one with a dead engine: the other one answers."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from app.demo.train import Demo
from tests.support.nginx import running_nginx
from tests.support.postgres import running_postgres
from tests.support.s3server import Script, scripted_server
from tests.support.server import Server, free_port, serving, set_up, together, until
from tests.support.server_fixtures import SLOTS

REQUESTS = 30
BODY = {"prompt": "[INST] Can you explain sugar? [/INST]", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Fleet:
    """Two servers, nginx in front of them, and a key of a tenant with an adapter."""

    url: str
    servers: list[Server]
    key: str

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False)


@pytest.fixture
def fleet(trained_demo: Demo, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        shared = SLOTS | together(tmp_path, stack.enter_context(running_postgres()))
        homes, ports = [tmp_path / "first", tmp_path / "second"], [free_port(), free_port()]
        for home in homes:
            home.mkdir()
        admin_key = set_up(homes[0], trained_demo.base, **shared)
        servers = [
            stack.enter_context(serving(home, trained_demo.base, admin_key, port=port, **shared))
            for home, port in zip(homes, ports, strict=True)
        ]
        key = servers[0].tenant("pricing", scopes=("inference",))
        assert servers[0].publish("pricing", "pricing", trained_demo.adapters["pricing"]).status_code == 201
        url = stack.enter_context(running_nginx(tmp_path, ports))
        fleet = Fleet(url, servers, key)
        until(lambda: _answers(fleet), 60)
        yield fleet


def _answers(fleet: Fleet) -> bool:
    with fleet.client() as client, suppress(httpx.TransportError):
        return client.get("/v1/models").status_code == 200
    return False


def test_a_server_with_a_dead_engine_costs_no_answer(fleet: Fleet) -> None:
    dead = fleet.servers[0]
    outcomes = []
    with fleet.client() as client, httpx.Client(base_url=dead.url, trust_env=False) as beside:
        kill(dead)
        for number in range(REQUESTS):
            # The server restarts the engine by itself; in this test the engine must stay dead.
            if beside.get("/health/ready").status_code == 200:
                kill(dead)
            body = BODY | {"model": ("pricing", "demo")[number % 2], "stream": number % 3 == 0}
            answer = client.post("/v1/completions", json=body)
            whole = (
                "[DONE]" in answer.text if body["stream"] else answer.status_code == 200 and answer.json()["choices"]
            )
            outcomes.append(bool(whole))
    assert sum(outcomes) == REQUESTS
    assert refused_by(dead) > 0, "nginx never asked the server whose engine is dead"


@pytest.mark.parametrize(
    ("method", "path", "again"),
    [
        ("POST", "/v1/completions", True),
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/messages", True),
        ("POST", "/v1/messages/count_tokens", True),
        ("POST", "/v1/tokenize", True),
        ("POST", "/v1/detokenize", True),
        ("POST", "/generate", True),
        ("POST", "/generate_stream", True),
        ("POST", "/", True),
        ("POST", "/v1/adapters/pricing/versions", False),
        ("POST", "/admin/tenants", False),
        ("PUT", "/v1/adapters/pricing/aliases/default", False),
        ("DELETE", "/admin/tenants/pricing/keys/abc", False),
    ],
)
def test_only_inference_is_asked_of_the_next_server_after_a_503(
    tmp_path: Path, method: str, path: str, again: bool
) -> None:
    """A request that changes something may have been executed, so the client must judge the answer."""
    with scripted_server(Script([(503, b"no")])) as one, scripted_server(Script([(503, b"no")])) as two:
        ports = [int(server.url.rpartition(":")[2]) for server in (one, two)]
        with running_nginx(tmp_path, ports) as url, httpx.Client(base_url=url, trust_env=False) as client:
            until(lambda: _listens(client), 60)
            one.asked.clear()
            two.asked.clear()
            assert client.request(method, path, content=b"{}").status_code == 503
    assert len(one.asked) + len(two.asked) == 1 + again


def _listens(client: httpx.Client) -> bool:
    with suppress(httpx.TransportError):
        client.get("/v1/models")
        return True
    return False


def kill(server: Server) -> None:
    """Kill the engine and its fork server, and wait until the server has noticed."""
    for process in [*server.engine_processes(), server.fork_server()]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    until(lambda: not server.is_ready(), 60)


def refused_by(server: Server) -> float:
    """Return the number of requests that the server itself refused because its engine was down."""
    wanted = 'tenora_errors_total{code="engine_unavailable"} '
    with server.client(server.admin_key) as admin:
        lines = admin.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))
