"""Ray's transport and its security, with light replicas: a real cluster of Ray on this machine, without an engine."""

import asyncio
import contextlib
import os
import pickle
import platform
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
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
from tests.support.light_cluster import light_cluster
from tests.support.light_processes import Listener, clean_environment, listeners
from tests.support.server import START_S, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REPLICAS = 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Run a cluster with light replicas."""
    with light_cluster(tmp_path_factory.mktemp("light"), str(REPLICAS)) as found:
        yield found


@pytest.fixture
async def transport(settings: Settings) -> AsyncIterator[Transport]:
    import ray

    # Connecting sets variables of Ray.
    with patch.dict(os.environ, clean_environment(), clear=True):
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


async def test_replicas_have_the_priority_of_other_programs(transport: Transport) -> None:
    assert {psutil.Process(pid).nice() for pid in await running(transport)} == {psutil.Process().nice()}


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


def _send_pickle(listener: Listener, path: Path, token: str | None) -> None:
    import grpc
    from ray.serve.generated.serve_pb2 import ASGIRequest

    message = ASGIRequest(pickled_request_metadata=pickle.dumps(_Touch(path))).SerializeToString()
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with (
        grpc.insecure_channel(f"{listener.address}:{listener.port}") as channel,
        contextlib.suppress(grpc.RpcError),
    ):
        channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(message, timeout=5, metadata=metadata)


def _submit_job(listener: Listener, path: Path, token: str | None) -> int | None:
    """Ask an agent of Ray to run a command. Return its status; None if the port does not speak HTTP/1."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"http://{listener.address}:{listener.port}/api/job_agent/jobs/"
    try:
        return httpx.post(url, json={"entrypoint": f"mkdir {path}"}, headers=headers, timeout=5).status_code
    except httpx.TransportError:
        return None


def test_no_port_runs_code_without_the_token(settings: Settings, tmp_path: Path) -> None:
    def refused(listener: Listener) -> bool:
        return _submit_job(listener, tmp_path / "made", None) in {401, 403}

    # The agent that takes commands starts after the replicas.
    until(lambda: any(map(refused, listeners(settings.home, settings.ray.host))), START_S)
    found = listeners(settings.home, settings.ray.host)
    assert sum(listener.process.startswith("ray::ServeReplica") for listener in found) >= REPLICAS
    for listener in found:
        for token in (None, "0" * 64):
            _send_pickle(listener, tmp_path / "made", token)
            assert _submit_job(listener, tmp_path / "made", token) in {None, 401, 403, 404, 405}
    assert not (tmp_path / "made").exists()
    # With the token the same calls do reach the pickle, and an agent takes the command.
    token = (settings.home / "secrets" / "ray-token").read_text()
    for listener in found:
        _send_pickle(listener, tmp_path / "made", token)
    assert (tmp_path / "made").exists()
    assert 200 in {_submit_job(listener, tmp_path / "ran", token) for listener in found}
    until((tmp_path / "ran").exists, START_S)


@pytest.mark.parametrize("token", [{"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN_PATH": "/none"}])
def test_a_client_without_the_token_is_refused(settings: Settings, token: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.support.light_client", str(settings.home)]
    variables = clean_environment() | {"TENORA_RAY__ADDRESS": "local"} | token
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be used" in done.stderr
    assert "Check that this process has the token of the cluster." in done.stderr
    assert "Traceback" not in done.stderr


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


async def test_prompts_and_answers_are_in_no_log(settings: Settings, transport: Transport) -> None:
    prompt, answer, fault = (uuid.uuid4().hex for _ in range(3))
    body = {"stream": True, "events": 3, "every_s": 0, "says": answer, "prompt": prompt}
    call = RayCall(replace(request(200, **body), prompt=prompt), transport, Routes())
    events = [event.text async for event in await call.answer()]
    assert answer in events[0]
    with pytest.raises(ReplicaFailed):
        await RayCall(request(201, prompt=prompt, fault=fault), transport, Routes()).answer()
    started = cluster.started_on(settings.home)
    assert started is not None
    raylet = next(p for p in psutil.Process(started.pid).children() if "raylet" in p.name())
    folder = next(word for word in raylet.cmdline() if "session_" in word).partition("=")[2]
    session = Path(folder[: folder.index("session_")])

    def texts() -> list[str]:
        paths = [*session.rglob("*"), *settings.home.rglob("*")]
        return [path.read_text(errors="replace") for path in paths if path.is_file()]

    # The replica has logged the fault, without its words.
    async with asyncio.timeout(START_S):
        while not any("A request failed." in text for text in texts()):
            await asyncio.sleep(0.1)
    assert not any(secret in text for text in texts() for secret in (prompt, answer, fault))
