"""Clients that send slowly, or too much, or do not read: each is let go, and who behaves is not."""

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from app.cli.connections import bounded
from app.cli.server import Server
from app.services.readiness import Readiness
from app.settings import LimitSettings

LIMITS = LimitSettings(
    connections=4, header_bytes=8192, header_seconds=0.5, upload_idle_seconds=0.001, unread_seconds=0.5
)
#: After the bound of a body, and the slack of an upload's own.
PATIENCE_S = 60


def _application() -> FastAPI:
    app = FastAPI()
    app.state.process = SimpleNamespace(readiness=Readiness({}), events=SimpleNamespace(end=lambda: None))
    app.state.gone = threading.Event()

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            try:
                for _ in range(10_000):
                    yield b"x" * 10_000
            finally:
                app.state.gone.set()

        return StreamingResponse(lines())

    return app


@pytest.fixture
def app() -> FastAPI:
    return _application()


@pytest.fixture
def connect(app: FastAPI) -> Iterator[Callable[[], socket.socket]]:
    with _running(app) as (_, port):
        opened = []

        def open_one() -> socket.socket:
            client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            opened.append(client)
            return client

        yield open_one
        for client in opened:
            client.close()


def test_who_has_just_come_as_the_server_ends_is_still_answered(app: FastAPI) -> None:
    with _running(app) as (server, port), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        while not server.server_state.connections:
            time.sleep(0.01)
        server.should_exit = True
        refused = False
        while not refused:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionError:
                refused = True
        client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na")
        assert everything(client).startswith(b"HTTP/1.1 200")


@contextmanager
def _running(app: FastAPI) -> Iterator[tuple[Server, int]]:
    config = uvicorn.Config(app, port=0, http=bounded(LIMITS), ws="none", lifespan="off", log_config=None)
    server = Server(config, app, drain_s=0, grace_s=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


def everything(client: socket.socket) -> bytes:
    """What the server says until it closes."""
    said = b""
    try:
        while chunk := client.recv(2**16):
            said += chunk
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize("begun", [b"", b"POST /echo HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_never_comes_is_not_waited_for(connect: Callable[[], socket.socket], begun: bytes) -> None:
    client = connect()
    client.sendall(begun)
    assert everything(client) == b""


def is_open(client: socket.socket) -> bool:
    """Whether the server still listens a moment later."""
    client.settimeout(0.1)
    try:
        client.sendall(b"a")
        return bool(client.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    assert any(not is_open(client) for _ in range(10 * PATIENCE_S))


@pytest.mark.parametrize("lead", [b"GET /", b"GET / HTTP/1.1\r\nx-filler: "])
def test_a_head_without_end_is_refused_while_it_comes(connect: Callable[[], socket.socket], lead: bytes) -> None:
    client = connect()
    client.sendall(lead + b"a" * (LIMITS.header_bytes + 1))
    head, _, body = everything(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
    assert json.loads(body)["error"]["message"] == "headers: found more, allowed 8192 bytes"


def test_a_body_larger_than_a_head_is_none(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    size = 20 * LIMITS.header_bytes
    for _ in range(2):
        client.sendall(f"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + b"a" * size)
        assert str(size).encode() in client.recv(2**16)


def test_a_body_that_does_not_go_on_is_not_waited_for(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
    assert everything(client) == b""


def test_an_answer_that_nobody_reads_ends(app: FastAPI, connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    assert app.state.gone.wait(PATIENCE_S)
    assert len(everything(client)) < 10_000 * 10_000


def test_no_more_connections_than_there_may_be(connect: Callable[[], socket.socket]) -> None:
    request = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
    clients = [connect() for _ in range(LIMITS.connections)]
    for client in clients:
        client.sendall(request)
        assert client.recv(2**16).startswith(b"HTTP/1.1 200")
    refused = everything(connect())
    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert b"retry-after: 5" in refused
    # Idle, and kept: only who has begun is hurried.
    time.sleep(3 * LIMITS.header_seconds)
    clients[0].sendall(request)
    assert clients[0].recv(2**16).startswith(b"HTTP/1.1 200")
