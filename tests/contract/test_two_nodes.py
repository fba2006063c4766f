"""Two whole servers without engines on one PostgreSQL and one S3 store."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url
from typer.testing import CliRunner

from adapters.cache import DiskCache
from app.engine.port import Answer, AnswerEvent, EngineRequest
from app.main import create_app
from app.settings import Settings
from app.wiring.node import node_id
from tenora_client.cli.root import app as command
from tests.support.live_server import live_server
from tests.support.registry import run_on_server
from tests.support.s3server import s3_client, s3_server
from tests.support.serving import MAX_RANK, NoEngine, PeftFiles, peft_files, save_base, set_up

pytestmark = pytest.mark.slow

pytest_plugins = ("tests.support.registry_fixtures",)

TENANT = "pricing"
ADAPTERS = f"/admin/tenants/{TENANT}/adapters"


class Unending:
    """Stream of one event that does not end and records its closing."""

    def __init__(self) -> None:
        self._told, self.closed = False, threading.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        if self._told:
            await asyncio.Event().wait()
        self._told = True
        return AnswerEvent('data: {"choices": [{"text": "x", "index": 0, "finish_reason": null}]}\n\n', 1)

    async def aclose(self) -> None:
        self.closed.set()


class EchoEngine(NoEngine):
    """Fake engine that loads the requested version like a real one and answers with its id.

    Its streams have no end.

    Attributes:
        cache: disk cache of this node, from which it reads adapters.
    """

    cache: DiskCache
    stream: Unending

    async def answer(self, request: EngineRequest) -> Answer:
        if request.body.get("stream"):
            self.stream = Unending()
            return self.stream
        if request.adapter is not None:
            async with await self.cache.lease(request.adapter):
                self._load(request.adapter.version_id)
        version = request.adapter.version_id if request.adapter else 0
        return {"id": request.request_id, "model": request.model, "choices": [{"text": str(version), "index": 0}]}


@dataclass(frozen=True)
class Peer:
    """One of the servers."""

    url: str
    home: Path
    engine: EchoEngine

    @property
    def on_disk(self) -> list[str]:
        """Names in the disk cache that belong to a version, including half-removed ones."""
        return [path.name for path in (self.home / "cache").rglob("*") if path.is_dir() and path.name != "tmp"]

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def ask(self, key: str, model: str) -> str:
        """Return the id of the version that answers, or the error's code."""
        with self.client(key) as client:
            answer = client.post("/v1/completions", json={"model": model, "prompt": "x"}).json()
        return str(answer["error"]["code"] if "error" in answer else answer["choices"][0]["text"])


@dataclass
class Cluster:
    """State that the servers share, and a method that starts a server."""

    settings: Settings
    bucket: str
    admin_key: str

    @contextlib.contextmanager
    def running(self, home: Path) -> Iterator[Peer]:
        home.mkdir(exist_ok=True)
        engine = EchoEngine()
        app = create_app(self.settings.model_copy(update={"home": home}), engine=engine)
        with live_server(_with_cache(app, engine)) as url:
            yield Peer(url, home, engine)

    def lose_blobs(self) -> None:
        """Remove all bytes from the bucket without the servers' knowledge."""
        for digest in self.blobs():
            s3_client(str(self.settings.s3_endpoint_url)).delete_object(Bucket=self.bucket, Key=f"p/sha256/{digest}")

    def blobs(self) -> set[str]:
        listed = s3_client(str(self.settings.s3_endpoint_url)).list_objects_v2(Bucket=self.bucket, Prefix="p/sha256/")
        return {item["Key"].rsplit("/", 1)[1] for item in listed.get("Contents", [])}


def _with_cache(app: FastAPI, engine: EchoEngine) -> FastAPI:
    """Build the application and give its engine the process's disk cache when that exists."""
    lifespan = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def with_cache(inner: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(inner) as state:
            engine.cache = inner.state.container.node.cache
            yield state

    app.router.lifespan_context = with_cache
    return app


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def cluster(endpoint: str, postgres_url: str, tmp_path: Path) -> Iterator[Cluster]:
    name, bucket = f"t{uuid.uuid4().hex}", f"b{uuid.uuid4().hex}"
    run_on_server(postgres_url, f"CREATE DATABASE {name}")
    s3_client(endpoint).create_bucket(Bucket=bucket)
    settings = Settings(
        home=tmp_path / "first",
        base_model=str(save_base(tmp_path / "tiny-llama")),
        engine={"max_lora_rank": MAX_RANK},
        database_url=make_url(postgres_url).set(database=name).render_as_string(hide_password=False),
        store_url=f"s3://{bucket}/p",
        s3_endpoint_url=endpoint,
        s3_region="us-east-1",
        pepper="the pepper of the tests, 32 bytes or more",
    )
    yield Cluster(settings, bucket, asyncio.run(set_up(settings)))
    run_on_server(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def files(tmp_path: Path) -> PeftFiles:
    return peft_files(tmp_path / "peft", seed=11)


def publish(cluster: Cluster, peer: Peer, files: PeftFiles) -> str:
    """Publish a version for a new tenant through this server; return a key of the tenant."""
    with peer.client(cluster.admin_key) as admin:
        assert admin.post("/admin/tenants", json={"slug": TENANT}).status_code == 201
        answer = admin.post(f"{ADAPTERS}/quotes/versions", files=parts(files))
        assert answer.status_code == 201, answer.text
        key: str = admin.post(f"/admin/tenants/{TENANT}/keys", json={"name": "test"}).json()["key"]
    return key


def parts(files: PeftFiles) -> dict[str, tuple[str, bytes]]:
    names = {"adapter_config.json": files.config, "adapter_model.safetensors": files.weights}
    return {name: (name, content) for name, content in names.items()}


def report(cluster: Cluster, peer: Peer, deletion: str, *, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the deletion's report satisfies the condition, and return it."""
    with peer.client(cluster.admin_key) as admin:
        for _ in range(600):
            found = dict(admin.get(f"/admin/deletions/{deletion}").json())
            if until(found):
                return found
            time.sleep(0.05)
    raise AssertionError(found)


def finished(found: dict[str, Any]) -> bool:
    return found["state"] == "finished"


def everywhere(found: dict[str, Any]) -> bool:
    return all(node["disk_gone_at"] for node in found["nodes"])


def delete(cluster: Cluster, peer: Peer) -> str:
    with peer.client(cluster.admin_key) as admin:
        answer = admin.delete(f"{ADAPTERS}/quotes/versions/1", params={"force": "true"})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])


def test_a_deletion_through_one_server_reaches_both_disks(cluster: Cluster, files: PeftFiles, tmp_path: Path) -> None:
    with cluster.running(tmp_path / "one") as one, cluster.running(tmp_path / "two") as two:
        key = publish(cluster, one, files)
        version = one.ask(key, "quotes")
        assert two.ask(key, "quotes") == version
        assert [len(peer.on_disk) for peer in (one, two)] == [1, 1]
        assert {int(version)} <= one.engine.loaded & two.engine.loaded
        assert len(cluster.blobs()) == 2
        found = report(cluster, two, delete(cluster, one), until=finished)
        assert [two.ask(key, name) for name in ("quotes", "quotes@1")] == ["not_found", "not_found"]
        assert {node["node"] for node in found["nodes"]} == {node_id(one.home), node_id(two.home)}
        assert all(node["engine_gone_at"] and node["disk_gone_at"] for node in found["nodes"])
        assert all(blob["gone_at"] for blob in found["blobs"])
        assert [peer.on_disk for peer in (one, two)] == [[], []]
        assert int(version) not in one.engine.loaded | two.engine.loaded
        assert cluster.blobs() == set()


def test_a_server_that_was_down_catches_up_before_serving(
    cluster: Cluster, files: PeftFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.domain.deletions.ALIVE_S", 1.0)
    monkeypatch.setattr("app.wiring.jobs.HEARTBEAT_S", 0.2)
    with cluster.running(tmp_path / "one") as one:
        with cluster.running(tmp_path / "two") as two:
            key = publish(cluster, one, files)
            two.ask(key, "quotes")
        assert len(two.on_disk) == 1
        deletion = delete(cluster, one)
        found = report(cluster, one, deletion, until=finished)
        away = {node["node"]: node for node in found["nodes"]}[node_id(two.home)]
        assert (away["reachable"], away["disk_gone_at"]) == (False, None)
        assert cluster.blobs() == set()
        with cluster.running(tmp_path / "two") as back:
            assert back.on_disk == []
            found = report(
                cluster, one, deletion, until=lambda found: all(node["disk_gone_at"] for node in found["nodes"])
            )
            assert all(node["reachable"] for node in found["nodes"])


def test_lost_bytes_are_reported_and_a_push_repairs_them(
    cluster: Cluster, files: PeftFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.wiring.jobs.LOST_BYTES_EVERY_S", 0.05)
    with cluster.running(tmp_path / "one") as one, cluster.running(tmp_path / "two") as two:
        key = publish(cluster, one, files)
        whole = cluster.blobs()
        cluster.lose_blobs()
        with two.client(key) as client:
            answer = client.post("/v1/completions", json={"model": "quotes", "prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_bytes_missing")
        assert "push the same files again" in answer.json()["error"]["message"]
        assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("false", "60")
        until(lambda: missing_at(cluster, two) == 1)
        until(lambda: events(cluster, "version.bytes_missing") == [(TENANT, "quotes@1")])
        push(cluster, one, tmp_path / "peft")
        assert cluster.blobs() == whole
        # The other server asks the store again at once and then reports nothing missing.
        until(lambda: missing_at(cluster, two) == 0)
        assert two.ask(key, "quotes") == one.ask(key, "quotes") == "1"
        assert events(cluster, "version.bytes_missing") == [(TENANT, "quotes@1")]


def push(cluster: Cluster, peer: Peer, folder: Path) -> None:
    environment = {"TENORA_URL": peer.url, "TENORA_KEY": cluster.admin_key, "TENORA_HOME": str(folder / "home")}
    arguments = ["adapters", "push", str(folder), "--tenant", TENANT, "--adapter", "quotes"]
    result = CliRunner().invoke(command, arguments, env=environment)
    assert result.exit_code == 0, result.stderr


def missing_at(cluster: Cluster, peer: Peer) -> float:
    with peer.client(cluster.admin_key) as admin:
        series = exposed(admin.get("/metrics").text)
    [value] = [value for labels, value in series["tenora_versions_without_bytes"] if labels == {"bytes": "missing"}]
    return value


def events(cluster: Cluster, action: str) -> list[tuple[str, str]]:
    url = str(cluster.settings.database_url).replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT tenant, subject FROM audit WHERE action = %s", (action,)).fetchall()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def exposed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples of an exposition by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_an_alias_move_reaches_the_other_server_in_a_second(cluster: Cluster, files: PeftFiles, tmp_path: Path) -> None:
    with cluster.running(tmp_path / "one") as one, cluster.running(tmp_path / "two") as two:
        key = publish(cluster, one, files)
        first = two.ask(key, "quotes")
        other = peft_files(tmp_path / "other", seed=12)
        with one.client(cluster.admin_key) as admin:
            assert admin.post(f"{ADAPTERS}/quotes/versions", files=parts(other)).status_code == 201
        moved = time.monotonic()
        assert two.ask(key, "quotes") != first
        assert time.monotonic() - moved < 1


def test_a_key_revoked_through_one_ends_its_stream_on_the_other(
    cluster: Cluster, files: PeftFiles, tmp_path: Path
) -> None:
    with cluster.running(tmp_path / "one") as one, cluster.running(tmp_path / "two") as two:
        key = publish(cluster, one, files)
        body = {"prompt": "x", "stream": True}
        with two.client(key) as client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert "choices" in next(lines)
            with one.client(cluster.admin_key) as admin:
                revoked = admin.delete(f"/admin/tenants/{TENANT}/keys/{key.split('_')[1]}")
                assert revoked.status_code == 204
            *_, last = [line for line in lines if line]
            assert "invalid_api_key" in last
            assert two.engine.stream.closed.is_set()
