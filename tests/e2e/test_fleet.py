"""One server in front of two real engine replicas: answers, streams, deletions, and a replica killed in mid-stream."""

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import psutil
import psycopg
import pytest
import sqlalchemy

from adapters.identity import VersionKey
from app.database.replica_role import grant
from app.demo.train import Demo
from app.domain.errors import NotFound
from app.engine.port import Endpoint, EngineRequest
from app.ray import cluster
from app.ray.snapshot import Snapshot, decode_snapshot
from app.ray.transport import Target, Transport
from app.ray.wire import Frame, Kind, decode_frame, encode_request
from app.settings import Settings
from tests.support.distinct_adapter import unlike_any_other
from tests.support.engine_replicas import replicas, states, status
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
    settings["TENORA_RAY__DATABASE_URL"] = database_role(settings["TENORA_DATABASE_URL"])
    with replicas(home, trained_demo.base, settings), serving(home, trained_demo.base, admin_key, **settings) as server:
        server.tenant("retail")
        for name, adapter in trained_demo.adapters.items():
            assert server.publish("retail", name, adapter).status_code == 201
        yield server


def database_role(url: str) -> str:
    """Return the URL of the registry under the role of replicas."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE ROLE tenora_replica LOGIN")
    grant(url, "tenora_replica")
    return sqlalchemy.make_url(url).set(username="tenora_replica").render_as_string(hide_password=False)


def ask(server: Server, key: str, model: str, **fields: Any) -> str:
    body = {"model": model, "prompt": "What is coffee?", "max_tokens": 16, "temperature": 0} | fields
    with server.client(key) as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


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
    until(lambda: states(fleet.home, trained_demo.base, settings) == ["ready"] * 2, START_S)
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


def test_a_pin_is_on_one_replica_and_any_server_shows_it(fleet: Server, trained_demo: Demo) -> None:
    name = next(iter(trained_demo.adapters))
    pin = f"/admin/tenants/retail/adapters/{name}/versions/1/pin"
    ask(fleet, fleet.tenant("retail"), name)
    with fleet.client(fleet.admin_key) as admin:

        def pinned() -> list[int]:
            nodes = admin.get("/admin/engine").json()["nodes"]
            return sorted(node["engine"]["slots"]["pinned"] for node in nodes if node["engine"])

        until(lambda: pinned() == [0, 0], START_S)
        assert admin.put(pin).status_code == 201
        until(lambda: pinned() == [0, 1], START_S)
        overview = admin.get("/admin/engine").json()
        metrics = admin.get("/metrics").text
        assert admin.delete(pin).status_code == 204
        until(lambda: pinned() == [0, 0], START_S)
    assert sorted(node["role"] for node in overview["nodes"]) == ["gateway", "replica", "replica"]
    [holder] = [node for node in overview["nodes"] if node["engine"] and node["engine"]["slots"]["pinned"]]
    assert f"retail/{name}@1" in [version["name"] for version in holder["engine"]["versions"]]
    replicas = {replica["node"]: replica for replica in overview["replicas"]}
    assert replicas.keys() == {node["id"] for node in overview["nodes"] if node["role"] == "replica"}
    assert sum(replica["requests"] for replica in replicas.values()) > 0
    for node in replicas:
        assert f'tenora_replica_up{{node="{node}"}} 1.0' in metrics


def test_prompts_and_answers_are_in_no_file_of_replicas(fleet: Server, trained_demo: Demo) -> None:
    key, model, secret = fleet.tenant("retail"), next(iter(trained_demo.adapters)), uuid.uuid4().hex
    answer = ask(fleet, key, model, prompt=f"What is coffee? {secret}", max_tokens=40, ignore_eos=True)
    assert len(answer.strip()) > 20
    with fleet.client(key) as client:
        refused = {"model": model, "prompt": secret, "max_tokens": 10**6}
        assert client.post("/v1/completions", json=refused).status_code == 400
    started = cluster.started_on(fleet.home)
    assert started is not None
    raylet = next(p for p in psutil.Process(started.pid).children() if "raylet" in p.name())
    folder = next(word for word in raylet.cmdline() if "session_" in word).partition("=")[2]
    paths = [*Path(folder[: folder.index("session_")]).rglob("*"), *(fleet.home / "engines").rglob("*")]
    texts = [path.read_text(errors="replace") for path in [*paths, fleet.home / "engines.log"] if path.is_file()]
    assert len(texts) > 5
    assert not any(words in text for text in texts for words in (secret, answer.strip()))


@contextlib.asynccontextmanager
async def connected(fleet: Server) -> AsyncIterator[Transport]:
    """Connect this process to the replicas, as a second gateway."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        transport = await cluster.open_transport(Settings(home=fleet.home, ray={"address": "local"}))
        yield transport
        await transport.close()
        ray.shutdown()


async def snapshots(transport: Transport) -> list[Snapshot]:
    found = [decode_snapshot(data) for data in await transport.call_all("snapshot", b"{}", timeout_s=START_S)]
    assert len(found) == 2
    return sorted(found, key=lambda snapshot: snapshot.node)


def newest_version(database_url: str) -> VersionKey:
    """Resolve the version that was published last, as a gateway does."""
    statement = "SELECT id, config_digest, weights_digest, config_bytes, weights_bytes FROM versions ORDER BY id DESC"
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect() as connection:
        key = VersionKey(*connection.execute(sqlalchemy.text(statement)).first() or ())
    engine.dispose()
    return key


async def last_frame(transport: Transport, version: VersionKey, node: str) -> Frame:
    """Send a request that was resolved to this version to a replica, and return the last frame of its answer."""
    body = {"prompt": "x", "max_tokens": 1}
    request = EngineRequest(f"held-{uuid.uuid4().hex}", Endpoint.COMPLETIONS, body, "gone", version, "salt")
    frames = transport.answer(encode_request(request, deadline_s=None), target=Target(node, version.digest))
    last = None
    while (data := await frames.next()) is not None:
        last = data
    assert last is not None
    return decode_frame(last)


async def test_a_request_held_past_a_deletion_loads_nothing(
    fleet: Server, trained_demo: Demo, settings: dict[str, Any], tmp_path: Path
) -> None:
    adapter = unlike_any_other(next(iter(trained_demo.adapters.values())), tmp_path / "adapter")
    fleet.tenant("late")
    assert (await asyncio.to_thread(fleet.publish, "late", "gone", adapter)).status_code == 201
    version = newest_version(settings["TENORA_DATABASE_URL"])
    async with connected(fleet) as transport:
        nodes = [snapshot.node for snapshot in await snapshots(transport)]
        for node in nodes:
            assert (await last_frame(transport, version, node)).kind is Kind.OUTCOME
        reports = [snapshot.report.versions for snapshot in await snapshots(transport)]
        assert all(version.version_id in {entry.version_id for entry in report} for report in reports)
        assert len(list((fleet.home / "engines").glob(f"*/cache/**/{version.digest}"))) == 2
        with fleet.client(fleet.admin_key) as admin:
            answer = admin.delete("/admin/tenants/late/adapters/gone", params={"force": "true"})
            assert answer.status_code == 202, answer.text
            location = answer.headers["location"]
            await asyncio.to_thread(until, lambda: admin.get(location).json()["state"] == "finished", 60)
        before = await snapshots(transport)
        for node in nodes:
            frame = await last_frame(transport, version, node)
            assert frame.kind is Kind.ERROR
            assert isinstance(frame.value, NotFound)
        after = await snapshots(transport)
    # Neither an event of a load, nor an admission that could load.
    assert [snapshot.number for snapshot in after] == [snapshot.number for snapshot in before]
    assert not any(entry.version_id == version.version_id for snapshot in after for entry in snapshot.report.versions)
    assert not list((fleet.home / "engines").glob(f"*/cache/**/{version.digest}"))


def test_streams_of_a_killed_replica_end_in_one_error_event(
    fleet: Server, trained_demo: Demo, settings: dict[str, Any]
) -> None:
    key, model = fleet.tenant("retail"), next(iter(trained_demo.adapters))
    victim = status(fleet.home, trained_demo.base, settings)[0]["pid"]
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
    until(lambda: states(fleet.home, trained_demo.base, settings) == ["ready"] * 2, START_S)
