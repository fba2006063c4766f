"""Startup and shutdown of `tenora server serve`: frozen heap, connection draining, interrupted starts."""

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.cli.server import Server
from app.main import create_app
from app.settings import Settings
from tests.support.serving import MAX_RANK, NoEngine, save_base, set_up


class StartingEngine(NoEngine):
    """Engine whose start never completes."""

    def __init__(self) -> None:
        super().__init__()
        self.starting = threading.Event()

    async def start(self) -> None:
        self.calls.append("start")
        self.starting.set()
        await asyncio.Event().wait()


def begin(folder: Path, engine: NoEngine, *, drain_s: float = 0) -> tuple[Server, threading.Thread, str]:
    """Start a server in a thread. Returns the server, its thread and a platform key."""
    base = save_base(folder / "tiny-llama")
    settings = Settings(home=folder / "home", base_model=str(base), engine={"max_lora_rank": MAX_RANK})
    settings.home.mkdir()
    key = asyncio.run(set_up(settings))
    app = create_app(settings, engine=engine)
    config = uvicorn.Config(app, port=0, lifespan="on", log_config=None)
    server = Server(config, app, drain_s=drain_s, grace_s=60)

    def run() -> None:
        # uvicorn exits this way when the application fails to start.
        with suppress(SystemExit):
            server.run()

    thread = threading.Thread(target=run)
    thread.start()
    return server, thread, key


@contextmanager
def running(folder: Path, *, drain_s: float = 0) -> Iterator[tuple[Server, threading.Thread, str]]:
    """Run a server in a thread with a platform key, and stop it at the end."""
    server, thread, key = begin(folder, NoEngine(), drain_s=drain_s)
    while not server.started:
        time.sleep(0.01)
    try:
        yield server, thread, key
    finally:
        server.should_exit = True
        thread.join(20)


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def test_what_a_server_loaded_is_not_walked_by_every_collection(tmp_path: Path) -> None:
    gc.unfreeze()
    with running(tmp_path):
        ends = time.monotonic() + 20
        while not gc.get_freeze_count() and time.monotonic() < ends:
            time.sleep(0.01)
        frozen, walked = gc.get_freeze_count(), len(gc.get_objects())
    gc.unfreeze()
    assert frozen > 10 * walked


def test_requests_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """Requests leave no reference cycles. Cycles occupy memory until a collection, which pauses every stream."""
    with running(tmp_path) as (server, _, key), httpx.Client(base_url=url_of(server), trust_env=False) as client:
        gc.disable()
        try:
            for _ in range(50):
                for path in ("/health/live", "/admin/tenants", "/v1/nowhere"):
                    client.get(path, headers={"authorization": f"Bearer {key}"})
            left = sum(isinstance(found, RequestResponseCycle) for found in gc.get_objects())
        finally:
            gc.enable()
    # Each connection keeps its last request cycle.
    assert left <= 2


def test_an_open_feed_does_not_hold_up_the_end_of_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as (server, thread, key):
        headers = {"authorization": f"Bearer {key}"}
        with (
            httpx.Client(base_url=url_of(server), headers=headers, timeout=30, trust_env=False) as client,
            client.stream("GET", "/admin/events") as feed,
        ):
            lines = feed.iter_lines()
            assert next(lines).startswith("retry:")
            server.should_exit = True
            assert any("The server is shutting down." in line for line in lines)
        thread.join(20)
        assert not thread.is_alive()


def test_sigterm_ends_readiness_before_answers(tmp_path: Path) -> None:
    with running(tmp_path, drain_s=600) as (server, thread, _):
        url = url_of(server)
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            assert "connection" not in client.get("/health/live").headers
            server.handle_exit(signal.SIGTERM, None)
            while (ready := client.get("/health/ready")).json()["checks"].get("server") is None:
                time.sleep(0.01)
            assert (ready.status_code, ready.json()["checks"]["server"]) == (503, "The server is shutting down.")
            # New connections are accepted too, and every response closes its connection.
            for answer in (client.get("/health/live"), httpx.get(f"{url}/health/live", trust_env=False)):
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert thread.is_alive()
            engine = server.config.app.state.container.node.engine  # type: ignore[union-attr]
            server.handle_exit(signal.SIGTERM, None)
        thread.join(20)
        assert not thread.is_alive()
        # The server stops restarting its engine when it reports that it is not ready.
        assert engine.calls[-2:] == ["leave", "stop"]


def test_who_interrupts_it_does_not_wait_for_proxies(tmp_path: Path) -> None:
    with running(tmp_path, drain_s=600) as (server, thread, _):
        server.handle_exit(signal.SIGINT, None)
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_start_is_given_up_at_once_without_a_traceback(
    tmp_path: Path, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StartingEngine()
    server, thread, _ = begin(tmp_path, engine, drain_s=600)
    assert engine.starting.wait(60)
    server.handle_exit(told, None)
    thread.join(60)
    assert not thread.is_alive()
    assert not server.started
    assert engine.calls == ["start", "stop"]
    assert "The server was stopped before it had started." in caplog.text
    assert "Traceback" not in caplog.text
