"""Slow, oversized and unresponsive clients are disconnected, and well-behaved clients are served."""

import asyncio
import http.client
import json
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from app.cli.connections import allow_files, bounded
from app.cli.server import Server
from app.services.operations.readiness import Readiness
from app.settings import LimitSettings

LIMITS = LimitSettings(
    connections=4, header_bytes=8192, header_seconds=0.5, upload_idle_seconds=0.001, unread_seconds=0.5
)
#: Client timeout in seconds, above the server's body timeout and its slack.
PATIENCE_S = 60
#: Server's timeout of idle connections in seconds, below the client's.
KEEP_ALIVE_S = 15


def _application() -> FastAPI:
    app = FastAPI()
    nothing = SimpleNamespace(end=lambda: None, leave=lambda: None)
    app.state.container = SimpleNamespace(
        gateway=SimpleNamespace(readiness=Readiness({}), events=nothing, batch_runner=nothing),
        node=SimpleNamespace(engine=nothing),
    )
    app.state.gone, app.state.waiting = threading.Event(), threading.Event()

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.post("/headers")
    async def headers(request: Request) -> dict[str, str]:
        await request.body()
        return dict(request.headers)

    @app.post("/refuse")
    async def refuse() -> str:
        return "no"

    @app.get("/wait")
    async def wait(request: Request) -> None:
        app.state.waiting.set()
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        app.state.gone.set()

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
def _running(app: FastAPI, limits: LimitSettings = LIMITS) -> Iterator[tuple[Server, int]]:
    protocol: Any = bounded(limits)
    config = uvicorn.Config(
        app, port=0, http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=KEEP_ALIVE_S
    )
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
    """Read everything until the server closes the connection."""
    said = b""
    try:
        while chunk := client.recv(2**16):
            said += chunk
    except ConnectionResetError:
        pass
    return said


def answer(client: socket.socket) -> tuple[int, bytes]:
    """Read one whole response, in any number of reads. Returns its status and body."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.read()


@pytest.mark.parametrize("begun", [b"", b"POST /echo HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_never_comes_is_not_waited_for(connect: Callable[[], socket.socket], begun: bytes) -> None:
    client = connect()
    client.sendall(begun)
    assert everything(client) == b""


def is_open(client: socket.socket) -> bool:
    """Return whether the server still holds the connection open a moment later."""
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
    assert (
        json.loads(body)["error"]["message"]
        == "The headers of the request exceed the limits of 8192 bytes and 256 headers."
    )


def test_a_body_larger_than_a_head_is_none(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    size = 20 * LIMITS.header_bytes
    for _ in range(2):
        client.sendall(f"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + b"a" * size)
        assert answer(client) == (200, b"%d" % size)


def test_a_body_that_does_not_go_on_is_not_waited_for(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
    assert everything(client) == b""


def test_an_answer_that_nobody_reads_ends(app: FastAPI, connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    assert app.state.gone.wait(PATIENCE_S)
    assert len(everything(client)) < 10_000 * 10_000


def answers(said: bytes) -> list[bytes]:
    """Return the status lines of all responses."""
    return re.findall(rb"HTTP/1\.1 [0-9]{3} [^\r]*", said)


UPGRADES = {
    "none": b"",
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "anything": b"upgrade: foo/2, bar\r\nconnection: upgrade\r\n",
    "twice": b"Upgrade: a\r\nConnection: Upgrade\r\nUpgrade: b\r\n",
}
SMUGGLED = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
BODIES = {
    "of a length": (b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED),
    "in chunks": (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize(("head", "body"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "at once"])
def test_an_upgrade_request_keeps_its_body(
    connect: Callable[[], socket.socket], upgrade: bytes, head: bytes, body: bytes, apart: bool
) -> None:
    client = connect()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = b"POST /echo HTTP/1.1\r\nHost: x\r\n" + upgrade + head + b"\r\n"
    for _ in range(2):
        if apart:
            client.sendall(request)
            # Once the server answers another connection, it has read the head of this request.
            other = connect()
            other.sendall(b"POST /refuse HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert everything(other).endswith(b'"no"')
            client.sendall(body)
        else:
            client.sendall(request + body)
        assert answer(client) == (200, b"%d" % len(SMUGGLED))
    client.sendall(b"POST /headers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n" + body)
    assert answers(everything(client)) == [b"HTTP/1.1 200 OK"]


def test_an_upgrade_without_a_body_is_answered_once(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    request = b"POST /headers HTTP/1.1\r\nHost: x\r\nX-A: b: c\r\n" + UPGRADES["websocket"] + b"\r\n"
    client.sendall(request * 3 + request.replace(b"keep-alive", b"close"))
    said = everything(client)
    assert answers(said) == [b"HTTP/1.1 200 OK"] * 4
    assert b'"x-a":"b: c"' in said
    assert b'"upgrade":' not in said


@pytest.mark.parametrize("request_", [b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_a_tunnel_and_http_2_are_refused(connect: Callable[[], socket.socket], request_: bytes) -> None:
    client = connect()
    client.sendall(request_ + SMUGGLED)
    assert answers(everything(client)) == [b"HTTP/1.1 400 Bad Request"]


CHUNKED = b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
TRAILER = b"".join(b"x%07d: %s\r\n" % (number, b"y" * 40) for number in range(1000))
ENDLESS = {
    "trailers": (b"0\r\n", TRAILER),
    "one trailer": (b"0\r\nx: ", b"y" * 50_000),
    "a trailer's name": (b"0\r\n", b"y" * 50_000),
    "a chunk's extension": (b"2;", b"y" * 50_000),
    "extensions of chunks": (b"", b"1;" + b"y" * 2000 + b"\r\na\r\n"),
}


@pytest.mark.parametrize("path", [b"/echo", b"/refuse"], ids=["read", "answered before"])
@pytest.mark.parametrize(("lead", "block"), ENDLESS.values(), ids=ENDLESS)
def test_what_is_no_body_is_bounded(
    connect: Callable[[], socket.socket], path: bytes, lead: bytes, block: bytes
) -> None:
    client = connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    client.sendall(b"POST " + path + CHUNKED + lead)
    sent = 0
    # The kernel buffers of both ends hold only a few MiB.
    while sent < 64 * 2**20:
        try:
            client.sendall(block)
        except ConnectionError:
            return
        sent += len(block)
    pytest.fail("the connection takes bytes for ever")


def test_a_trailer_is_no_header(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /headers" + CHUNKED + b"0\r\nx-late: 1\r\n\r\n")
    first = client.recv(2**16)
    client.sendall(b"POST /headers HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    both = first + everything(client)
    assert answers(both) == [b"HTTP/1.1 200 OK"] * 2
    assert b"x-late" not in both


def test_a_body_in_chunks_of_one_byte_is_read(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    size = 10 * LIMITS.header_bytes
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client.sendall(head + b"1;a=b\r\na\r\n" * size + b"0\r\n\r\n")
    assert answer(client) == (200, b"%d" % size)


@pytest.mark.parametrize(
    "headers", [b"a:\r\n" * 300, b"a: " + b"b" * 9000 + b"\r\n"], ids=["many headers", "a long header"]
)
def test_a_head_that_comes_at_once_is_bounded_too(connect: Callable[[], socket.socket], headers: bytes) -> None:
    client = connect()
    client.sendall(b"POST /refuse HTTP/1.1\r\n" + headers + b"\r\n")
    assert answers(everything(client)) == [b"HTTP/1.1 431 Request Header Fields Too Large"]


def test_few_requests_wait_behind_another(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /refuse HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
    assert answers(everything(client)) == [b"HTTP/1.1 200 OK"] * 9


BEHIND = {
    "no request": b"nonsense\r\n\r\n",
    "a body that is none": b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nx",
}


#: It ends with the timeout of a head.
ENDLESS = pytest.param(b"GET / HTTP/1.1\r\nx-filler: " + b"a" * 10_000, marks=pytest.mark.slow, id="a head without end")


@pytest.mark.parametrize("behind", [*(pytest.param(behind, id=name) for name, behind in BEHIND.items()), ENDLESS])
def test_garbage_behind_a_request_costs_no_answer(connect: Callable[[], socket.socket], behind: bytes) -> None:
    client = connect()
    request = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    client.sendall(request * 2 + behind)
    assert answers(everything(client)) == [b"HTTP/1.1 200 OK"] * 2


def test_a_body_that_cannot_be_read_has_one_answer(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /echo" + CHUNKED + b"nonsense")
    assert answers(everything(client)) == [b"HTTP/1.1 400 Bad Request"]


def test_an_early_answer_ends_the_connection(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b"POST /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"a" * 1000)
    first = client.recv(2**16)
    assert first.startswith(b"HTTP/1.1 200")
    assert b"connection: close\r\n" in first
    # The server keeps reading for a moment while the client still sends, so that the client receives the response.
    client.sendall(b"a" * 100_000)
    assert everything(client) in (b"", b'"no"')


def test_the_end_of_a_connection_ends_what_it_asked_for_first(
    app: FastAPI, connect: Callable[[], socket.socket]
) -> None:
    client = connect()
    client.sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    assert app.state.waiting.wait(PATIENCE_S)
    # Pipeline a second request, then reset the connection.
    client.sendall(b"POST /refuse HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert app.state.gone.wait(PATIENCE_S)


REQUEST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"


def answered(client: socket.socket) -> bool:
    client.sendall(REQUEST)
    return answer(client) == (200, b"1")


def test_when_all_are_taken_the_longest_idle_one_goes(connect: Callable[[], socket.socket]) -> None:
    clients = []
    for _ in range(LIMITS.connections):
        clients.append(connect())
        assert answered(clients[-1])
        # The clock of the event loop counts whole milliseconds.
        time.sleep(0.005)
    assert answered(clients[0])
    late = connect()
    assert answered(late)
    # The first connection was used again, so the second one is idle the longest.
    assert everything(clients[1]) == b""
    # Idle keep-alive connections are kept: the header timeout covers a new connection or a started request.
    time.sleep(3 * LIMITS.header_seconds)
    assert all(answered(client) for client in (clients[0], *clients[2:], late))


def test_a_connection_that_is_at_work_is_kept(app: FastAPI, connect: Callable[[], socket.socket]) -> None:
    clients = []
    for _ in range(LIMITS.connections):
        clients.append(connect())
        app.state.waiting.clear()
        clients[-1].sendall(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        assert app.state.waiting.wait(PATIENCE_S)
    refused = everything(connect())
    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert b"retry-after: 5" in refused
    assert all(is_quiet(client) for client in clients)


def is_quiet(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        return bool(client.recv(1))
    except TimeoutError:
        return True


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /echo HTTP/1.1\r\n", b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\na"],
    ids=["nothing", "a head", "a body"],
)
def test_the_address_with_the_most_connections_goes_first(app: FastAPI, begun: bytes) -> None:
    patient = LimitSettings(connections=LIMITS.connections)
    with _running(app, patient) as (server, port):
        quiet = _from("127.0.0.2", port)
        assert answered(quiet)
        crowd = []
        for number in range(2 * LIMITS.connections):
            crowd.append(_from("127.0.0.1", port))
            crowd[-1].sendall(begun)
            while len(server.server_state.connections) < min(number + 2, LIMITS.connections):
                time.sleep(0.01)
        neighbour = _from("127.0.0.3", port)
        # The first client was idle before all others, and still neither it nor the neighbour was disconnected.
        assert answered(neighbour)
        assert answered(quiet)
        for client in (quiet, neighbour, *crowd):
            client.close()


def _from(address: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S, source_address=(address, 0))


def test_the_limit_of_open_files_follows_the_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        allow_files(LimitSettings(connections=2000))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3024, hard)
        allow_files(LimitSettings(connections=4))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3024, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
