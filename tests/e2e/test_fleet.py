"""One server in front of two real engine replicas: answers, streams, deletions, and a replica killed in mid-stream."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest

from app.demo.train import Demo
from tests.support.distinct_adapter import unlike_any_other
from tests.support.fleet_server import replicas, status
from tests.support.postgres import running_postgres
from tests.support.server import START_S, Server, serving, set_up, together, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

STREAMS = 8
TOKENS = 700


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fleet")
    with running_postgres() as database:
        yield SLOTS | together(folder, database) | {"TENORA_RAY__ADDRESS": "local"}


@pytest.fixture(scope="module")
def fleet(trained_demo: Demo, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("fleet-home")
    admin_key = set_up(home, trained_demo.base, **settings)
    with replicas(home, trained_demo.base, settings), serving(home, trained_demo.base, admin_key, **settings) as server:
        server.tenant("retail")
        for name, adapter in trained_demo.adapters.items():
            assert server.publish("retail", name, adapter).status_code == 201
        yield server


def ask(server: Server, key: str, model: str, **fields: Any) -> str:
    body = {"model": model, "prompt": "What is coffee?", "max_tokens": 16, "temperature": 0} | fields
    with server.client(key) as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def states(server: Server, base: Path, settings: dict[str, Any]) -> list[str]:
    return [row["state"] for row in status(server, base, settings)]


def stream(server: Server, key: str, model: str, begun: Semaphore) -> list[str]:
    """Return the events of a stream, and signal its first one."""
    lines: list[str] = []
    body = {"model": model, "prompt": "Tell a story", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    with server.client(key) as client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in filter(None, answer.iter_lines()):
            if not lines:
                begun.release()
            lines.append(line)
    return lines


def test_two_replicas_answer_alike_and_as_streams(fleet: Server, trained_demo: Demo, settings: dict[str, Any]) -> None:
    key = fleet.tenant("retail")
    models = ["demo", *trained_demo.adapters]
    until(lambda: states(fleet, trained_demo.base, settings) == ["ready"] * 2, START_S)
    answers = {model: {ask(fleet, key, model) for _ in range(6)} for model in models}
    assert all(len(texts) == 1 for texts in answers.values()), answers
    assert len(set(map(frozenset, answers.values()))) == len(models)
    for model in models:
        with fleet.client(key) as client:
            body = {"model": model, "prompt": "What is coffee?", "max_tokens": 16, "temperature": 0, "stream": True}
            lines = client.post("/v1/completions", json=body).text.split("\n\n")
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert {"".join(event["choices"][0]["text"] for event in events)} == answers[model]


def test_a_deletion_is_confirmed_by_both_replicas(fleet: Server, trained_demo: Demo, tmp_path: Path) -> None:
    key = fleet.tenant("short")
    adapter = unlike_any_other(next(iter(trained_demo.adapters.values())), tmp_path / "adapter")
    assert fleet.publish("short", "gone", adapter).status_code == 201
    for _ in range(6):
        ask(fleet, key, "gone")
    with fleet.client(fleet.admin_key) as admin:
        answer = admin.delete("/admin/tenants/short/adapters/gone", params={"force": "true"})
        assert answer.status_code == 202, answer.text
        location = answer.headers["location"]
        until(lambda: admin.get(location).json()["state"] == "finished", 60)
        report = admin.get(location).json()
    assert len(report["nodes"]) == 3
    assert all(node["engine_gone_at"] and node["disk_gone_at"] for node in report["nodes"])
    with fleet.client(key) as client:
        assert client.post("/v1/completions", json={"model": "gone", "prompt": "x"}).status_code == 404


def test_streams_of_a_killed_replica_end_in_one_error_event(
    fleet: Server, trained_demo: Demo, settings: dict[str, Any]
) -> None:
    key, model = fleet.tenant("retail"), next(iter(trained_demo.adapters))
    victim = status(fleet, trained_demo.base, settings)[0]["pid"]
    begun = Semaphore(0)
    with ThreadPoolExecutor(STREAMS) as threads:
        streams = [threads.submit(stream, fleet, key, model, begun) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            begun.acquire()
        os.kill(victim, signal.SIGKILL)
        ends = [one.result() for one in streams]
    errors = [[line for line in lines if line.startswith('data: {"error"')] for lines in ends]
    assert all(len(found) <= 1 for found in errors)
    assert any(errors)
    assert not all(errors)
    assert all(lines[-1] == "data: [DONE]" for lines in ends)
    # The other replica answers at once.
    for _ in range(5):
        ask(fleet, key, model)
    until(lambda: states(fleet, trained_demo.base, settings) == ["ready"] * 2, START_S)
