"""Ray's transport and its security, with light replicas: a real cluster of Ray on this machine, without an engine."""

import asyncio
import contextlib
import os
import pickle
import platform
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.domain.errors import EngineUnavailable
from app.engine.port import AnswerEvent, Endpoint, EngineRequest
from app.ray import cluster
from app.ray.calls import RayCall
from app.ray.error_words import ReplicaFailed
from app.ray.routes import Routes
from app.ray.transport import Target, Transport
from app.ray.wire import Kind, decode_frame, encode_request
from app.scheduling.rendezvous import ranking
from app.settings import Settings
from tests.support.server import START_S, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REPLICAS = 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Run a cluster with light replicas."""
    home = tmp_path_factory.mktemp("light")
    with (home / "log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.light_fleet", str(home), str(REPLICAS)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        until(lambda: (home / "deployed").exists() or process.poll() is not None, START_S)
        assert process.poll() is None, (home / "log").read_text()
        yield Settings(home=home, ray={"address": "local"})
        left = psutil.Process(process.pid).children(recursive=True)
        assert cluster.stop(home)
        assert process.wait(30) == 0
        assert psutil.wait_procs(left, timeout=30)[1] == []
    finally:
        process.kill()


@pytest.fixture
async def transport(settings: Settings) -> AsyncIterator[Transport]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        opened = await cluster.open_transport(settings)
        yield opened
        await opened.close()
        ray.shutdown()


def request(number: int, **body: Any) -> EngineRequest:
    return EngineRequest(f"req-{number}-{os.getpid()}", Endpoint.CHAT, body, "m", None, "salt", "hi")


async def running(transport: Transport) -> dict[int, int]:
    """Return the number of running requests of each replica, by its process."""
    answers = await transport.call_all("running", b"", timeout_s=10)
    return {int(pid): int(count) for pid, count in (answer.split() for answer in answers)}


async def begun(transport: Transport, number: int) -> tuple[RayCall, Any, int]:
    """Start an endless stream. Return its call, the stream and the process of its replica."""
    call = RayCall(request(number, stream=True, events=10**6, every_s=0.01), transport, Routes())
    answer: Any = await call.answer()
    event = await anext(answer)
    return call, answer, int(event.text.split()[2])


async def test_answers_streams_aborts_and_faults(transport: Transport) -> None:
    call = RayCall(request(1), transport, Routes())
    assert (await call.answer())["pid"] in await running(transport)
    assert call.outcome.usage is not None
    call = RayCall(request(2, stream=True, events=100, every_s=0), transport, Routes())
    events = [event async for event in await call.answer()]
    assert [event.text.split()[1] for event in events[:-1]] == [str(number) for number in range(100)]
    assert call.outcome.usage is not None
    assert call.outcome.usage.output_tokens == 100
    call, answer, _ = await begun(transport, 3)
    await answer.aclose()
    assert call.outcome.usage is not None
    assert call.outcome.usage.output_tokens >= 1
    assert set((await running(transport)).values()) == {0}
    with pytest.raises(ReplicaFailed):
        await RayCall(request(4, fault="the prompt was: secret"), transport, Routes()).answer()


async def test_a_request_reaches_the_node_of_its_target(transport: Transport) -> None:
    version = "f" * 64
    nodes = {f"node-{pid}": pid for pid in await running(transport)}

    async def answered_by(number: int, target: Target) -> int:
        stream = transport.answer(encode_request(request(number), deadline_s=None), target=target)
        assert decode_frame(await stream.next() or b"").kind is Kind.HELLO
        pid: int = decode_frame(await stream.next() or b"").value["pid"]
        assert decode_frame(await stream.next() or b"").kind is Kind.OUTCOME
        assert await stream.next() is None
        return pid

    # Ray asks a new replica for its node within about a second.
    first = ranking(version, tuple(sorted((node, 4) for node in nodes)))[0]
    async with asyncio.timeout(START_S):
        while await answered_by(100, Target("gone", version)) != nodes[first]:
            await asyncio.sleep(0.1)
        for node, pid in nodes.items():
            while await answered_by(101, Target(node)) != pid:
                await asyncio.sleep(0.1)
    for number in range(10):
        for node, pid in nodes.items():
            assert await answered_by(110 + number, Target(node, version)) == pid
        assert await answered_by(120 + number, Target("gone", version)) == nodes[first]


async def test_a_killed_replica_cuts_its_streams_and_no_others(transport: Transport) -> None:
    streams = [await begun(transport, 10 + number) for number in range(6)]
    victim = streams[0][2]
    assert {pid for *_, pid in streams} == set(await running(transport))
    os.kill(victim, signal.SIGKILL)
    for _, answer, pid in streams:
        if pid == victim:
            *_, error, done = [event async for event in answer]
            assert error.text.startswith('data: {"error"')
            assert done == AnswerEvent("data: [DONE]\n\n", 0)
        else:
            assert not (await anext(answer)).text.startswith('data: {"error"')
            await answer.aclose()
    for number in range(15):
        assert (await RayCall(request(20 + number), transport, Routes()).answer())["pid"] != victim
    async with asyncio.timeout(START_S):
        while len(await running(transport)) < REPLICAS:
            await asyncio.sleep(0.1)


async def test_the_streams_of_a_killed_gateway_end_at_the_replicas(settings: Settings, transport: Transport) -> None:
    command = [sys.executable, "-m", "tests.support.light_gateway", str(settings.home)]
    gateway = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert gateway.stdout is not None
    async with asyncio.timeout(START_S):
        while await gateway.stdout.readline() != b"streaming\n":
            pass
    assert sum((await running(transport)).values()) == 6
    gateway.kill()
    await gateway.wait()
    async with asyncio.timeout(30):
        while sum((await running(transport)).values()):
            await asyncio.sleep(0.05)


class _Touch:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def _attack(port: int, path: Path, metadata: tuple[tuple[str, str], ...]) -> None:
    import grpc
    from ray.serve.generated.serve_pb2 import ASGIRequest

    message = ASGIRequest(pickled_request_metadata=pickle.dumps(_Touch(path))).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.2:{port}") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(message, timeout=5, metadata=metadata)


def test_no_port_unpickles_what_comes_without_the_token(settings: Settings, tmp_path: Path) -> None:
    started = cluster.started_on(settings.home)
    assert started is not None
    processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
    ports = {c.laddr.port for one in processes for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert len(ports) >= REPLICAS
    for port in ports:
        for metadata in ((), (("authorization", "Bearer " + "0" * 64),)):
            _attack(port, tmp_path / "made", metadata)
    assert not (tmp_path / "made").exists()
    # With the token the same call does reach the pickle.
    token = (settings.home / "secrets" / "ray-token").read_text()
    for port in ports:
        _attack(port, tmp_path / "made", (("authorization", f"Bearer {token}"),))
    assert (tmp_path / "made").exists()


def test_a_client_without_the_token_is_refused(settings: Settings) -> None:
    address = cluster.resolved_address(settings)
    code = f"import ray; ray.init({address!r}, _node_ip_address='127.0.0.2'); print('connected')"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables = clean | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "connected" not in done.stdout
    assert "token" in done.stderr.lower()


def test_without_a_cluster_a_sentence_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="tenora engines up"):
        cluster.resolved_address(Settings(home=tmp_path))


@pytest.mark.parametrize("own", [("2.59.0", platform.python_version()), ("2.60.0", "3.12.1")])
def test_a_cluster_of_another_version_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, own: tuple[str, str]
) -> None:
    import ray

    for variable in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("ray._private.utils.compute_version_info", lambda: own)
    words = f"runs Ray {ray.__version__} on Python {platform.python_version()}, .* Install the same releases"
    try:
        with pytest.raises(EngineUnavailable, match=words):
            cluster.connect(settings)
    finally:
        ray.shutdown()


def test_prompts_are_in_no_log_of_ray(settings: Settings) -> None:
    started = cluster.started_on(settings.home)
    assert started is not None
    raylet = next(p for p in psutil.Process(started.pid).children() if "raylet" in p.name())
    folder = next(word for word in raylet.cmdline() if "session_" in word).partition("=")[2]
    logs = Path(folder[: folder.index("session_")]).rglob("*.*")
    texts = [path.read_text(errors="replace") for path in logs if path.is_file()]
    assert any("A request failed." in text for text in texts)
    assert not any("the prompt was: secret" in text for text in texts)
