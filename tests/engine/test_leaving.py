"""Shutdown of servers, alone or with their whole process group, at any time: no process is left."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app.demo.train import Demo
from tests.support.server import TENORA, Server, environment, free_port, processes_of, serving, set_up, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

#: Runs longer than the server accepts requests after SIGTERM.
TOKENS = 400
LONG = {"prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
SETTINGS = SLOTS | {"TENORA_DRAIN_SECONDS": "1", "TENORA_GRACE_SECONDS": "600"}
#: An engine polls twice a second for its server. An engine that is importing modules checks after the import.
GONE_S = 120

Kill = Callable[[int, int], None]
#: A supervisor signals the server's process, a terminal its process group.
BY_WHOM = [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)]


@pytest.fixture(scope="module")
def home(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """HOME that servers of these tests use one after the other, and a platform key."""
    home = tmp_path_factory.mktemp("leaving")
    return home, set_up(home, trained_demo.base, **SETTINGS)


@contextlib.contextmanager
def nothing_left(home: Path) -> Iterator[None]:
    """Check that every process of this HOME ends soon after the block; kill the others."""
    try:
        yield
        until(lambda: not processes_of(home), GONE_S)
    finally:
        for process in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


async def finish_reasons(server: Server, key: str, began: asyncio.Event) -> list[str]:
    """Return why each of two streams ended. The event is set at the first token."""
    headers = {"authorization": f"Bearer {key}"}

    async def stream(client: httpx.AsyncClient) -> str:
        tokens, reason = 0, ""
        async with client.stream("POST", "/v1/completions", json=LONG | {"model": "demo", "logprobs": 0}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                began.set()
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    (choice,) = event["choices"]
                    tokens += len(choice["logprobs"]["tokens"])
                    reason = choice["finish_reason"] or reason
        return f"{reason} after {tokens}"

    async with httpx.AsyncClient(base_url=server.url, timeout=600, headers=headers) as client:
        return list(await asyncio.gather(stream(client), stream(client)))


def begin_start(folder: Path, base: Path) -> subprocess.Popen[bytes]:
    """Start a server and return at once; ``start.log`` has what it says."""
    with (folder / "start.log").open("wb") as log:
        return subprocess.Popen(
            [TENORA, "serve", "--port", str(free_port())],
            env=environment(folder, base, **SETTINGS),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@pytest.mark.parametrize(("kill", "told"), BY_WHOM)
async def test_streams_are_whole_and_no_process_is_left(
    home: tuple[Path, str], trained_demo: Demo, kill: Kill, told: signal.Signals
) -> None:
    folder, admin_key = home
    with nothing_left(folder), serving(folder, trained_demo.base, admin_key, **SETTINGS) as server:
        key = server.tenant("pricing")
        restarts = server.metric("tenora_engine_restarts_total")
        began = asyncio.Event()
        streams = asyncio.create_task(finish_reasons(server, key, began))
        await began.wait()
        kill(server.process.pid, told)
        assert await streams == [f"length after {TOKENS}"] * 2
        await asyncio.to_thread(server.process.wait, GONE_S)
        assert restarts == 0
    log = (folder / "server.log").read_text()
    assert "The engine died" not in log


def test_an_engine_that_dies_at_shutdown_is_not_replaced(home: tuple[Path, str], trained_demo: Demo) -> None:
    folder, admin_key = home
    settings = SETTINGS | {"TENORA_DRAIN_SECONDS": "600"}
    with nothing_left(folder), serving(folder, trained_demo.base, admin_key, **settings) as server:
        (engine,) = server.engine_processes()
        fork_server = server.fork_server()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not server.is_ready(), GONE_S)
        engine.kill()
        fork_server.kill()
        until(lambda: "no other engine is started" in (folder / "server.log").read_text(), GONE_S)
        assert not server.engine_processes()
        # A second signal means that the operator does not want to wait.
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(GONE_S)


@pytest.mark.parametrize(("kill", "told"), BY_WHOM)
def test_a_start_is_given_up_at_once(home: tuple[Path, str], trained_demo: Demo, kill: Kill, told: int) -> None:
    folder, _ = home
    with nothing_left(folder):
        server = begin_start(folder, trained_demo.base)
        # The fork server runs, the engine does not.
        until(lambda: "Waiting for application startup" in (folder / "start.log").read_text(), GONE_S)
        children = psutil.Process(server.pid).children()
        assert any("forkserver" in " ".join(child.cmdline()) for child in children)
        kill(server.pid, told)
        assert server.wait(GONE_S) != 0
    said = (folder / "start.log").read_text()
    assert "The server was stopped before it had started." in said
    assert "Traceback" not in said
    assert "startup complete" not in said


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_vllm_is_imported_leaves_no_process(
    home: tuple[Path, str], trained_demo: Demo, told: int
) -> None:
    folder, _ = home
    with nothing_left(folder):
        server = begin_start(folder, trained_demo.base)
        until(lambda: len(processes_of(folder)) > 2, GONE_S)
        os.kill(server.pid, told)
        assert server.wait(GONE_S) != 0


def test_a_server_that_is_killed_leaves_no_engine(home: tuple[Path, str], trained_demo: Demo) -> None:
    folder, admin_key = home
    with nothing_left(folder), serving(folder, trained_demo.base, admin_key, **SETTINGS) as server:
        server.process.kill()
        server.process.wait(GONE_S)
