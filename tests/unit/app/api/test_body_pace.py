"""Minimum body rate: slow clients lose their upload slot, honest ones are read to the end."""

import asyncio
import contextlib
import hashlib
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Message

from app.api.body_pace import BodyPace
from app.domain.errors import BodyTooSlow
from app.settings import LimitSettings
from tests.support.idempotency_rows import idempotency_rows
from tests.support.serving import PeftFiles
from tests.support.site import Site, make_unit, parts, running_site

pytestmark = pytest.mark.slow

KIB, LONG_S = 1024, 600


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with virtual time: the clock jumps to the next timer when no callback is ready."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        due = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if due and not self._ready:  # type: ignore[attr-defined]
            self.now = max(self.now, min(due))
        super()._run_once()  # type: ignore[misc]


def sent(chunk: int, every_s: float, *, for_s: float, then_silent: bool = False) -> tuple[bool, float]:
    """Return whether a body of this pace is read to its end, and the time at which reading stopped."""
    loop = VirtualLoop()

    async def messages() -> AsyncIterator[Message]:
        for _ in range(round(for_s / every_s)):
            await asyncio.sleep(every_s)
            yield {"type": "http.request", "body": b"x" * chunk, "more_body": True}
        if then_silent:
            await asyncio.Event().wait()

    async def read() -> bool:
        pace, source = BodyPace(LimitSettings()), messages()
        try:
            while True:
                await pace.next(lambda: anext(source))
        except StopAsyncIteration:
            return True
        except BodyTooSlow:
            return False

    try:
        return loop.run_until_complete(read()), loop.now
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("chunk", "every_s"), [(64 * KIB, 1), (KIB, 1 / 64), (16 * KIB, 1), (64 * KIB, 4), (80 * KIB, 4.9)]
)
def test_slow_but_honest_clients_are_read_to_the_end(chunk: int, every_s: float) -> None:
    whole, at = sent(chunk, every_s, for_s=LONG_S)
    assert whole
    assert at == pytest.approx(LONG_S, rel=0.01)


@pytest.mark.parametrize(
    ("chunk", "every_s", "latest_s"),
    [(1, 20, 5), (1, 1, 5.1), (1, 0.01, 5.1), (KIB, 1, 6), (8 * KIB, 1, 11), (1000 * KIB, 6, 5)],
)
def test_slower_ones_are_given_up_soon(chunk: int, every_s: float, latest_s: float) -> None:
    whole, at = sent(chunk, every_s, for_s=LONG_S)
    assert not whole
    assert at <= latest_s


def test_what_came_fast_buys_no_long_silence() -> None:
    whole, at = sent(KIB * KIB, 0.1, for_s=60, then_silent=True)
    assert not whole
    assert at == pytest.approx(65)


@pytest.fixture(scope="module")
def patient(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that aborts a silent body after two seconds."""
    limits = {"body_grace_seconds": 2.0}
    with running_site(tmp_path_factory.mktemp("patient"), base, limits=limits) as site:
        yield site


def begin(site: Site, key: str, path: str, *, body: bytes, method: str = "POST", **headers: str) -> socket.socket:
    """Send a request that announces far more bytes than it sends."""
    address = urlsplit(site.url)
    connection = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)
    lines = [f"{method} {path} HTTP/1.1", "host: test", f"authorization: Bearer {key}", "content-length: 1000000"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return connection


def answer(connection: socket.socket) -> tuple[str, dict[str, Any]]:
    """Read until the server closes the connection. Returns the head and the JSON body."""
    head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return head.decode().lower(), json.loads(body)


FORM = {"content_type": "multipart/form-data; boundary=b"}
FIRST = b'--b\r\ncontent-disposition: form-data; name="adapter_model.safetensors"\r\n\r\nx'


def test_who_holds_all_places_and_sends_nothing_loses_them(patient: Site, files: PeftFiles) -> None:
    with patient.client(patient.admin_key) as admin, contextlib.ExitStack() as held:
        attackers, neighbour = [make_unit(admin), make_unit(admin)], make_unit(admin)
        path = "/v1/adapters/a/versions"
        connections = [
            held.enter_context(begin(patient, attacker.key, path, body=FIRST, **FORM))
            for attacker in attackers
            for _ in range(2)
        ]
        with patient.client(neighbour.key) as client:
            assert client.post("/v1/adapters/mine/versions", files=parts(files)).status_code == 201
        for connection in connections:
            head, body = answer(connection)
            assert head.startswith("http/1.1 408")
            assert "connection: close" in head
            assert body["error"]["code"] == "body_too_slow"
            assert "16384 bytes a second" in body["error"]["message"]
    assert not list(patient.spool.glob("*/*"))


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("/v1/completions", b'{"prompt": "'),
        ("/v1/chat/completions", b'{"messages": "'),
        ("/v1/responses", b'{"input": "'),
        ("/generate", b'{"inputs": "'),
        ("/v1/adapters/a/uploads", b'{"files": "'),
    ],
)
def test_json_bodies_have_the_rate_too(patient: Site, path: str, start: bytes) -> None:
    with patient.client(patient.admin_key) as admin:
        unit = make_unit(admin)
    with begin(patient, unit.key, path, body=start, content_type="application/json") as connection:
        head, body = answer(connection)
    assert head.startswith("http/1.1 408")
    assert (body["error_type"] if path == "/generate" else body["error"]["code"]) in {"validation", "body_too_slow"}


def test_a_part_of_a_resumable_upload_has_it_too(patient: Site, files: PeftFiles) -> None:
    named = {"adapter_config.json": files.config, "adapter_model.safetensors": files.weights}
    announced = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in named.items()
    }
    with patient.client(patient.admin_key) as admin:
        unit = make_unit(admin)
    with patient.client(unit.key) as client:
        upload = client.post("/v1/adapters/a/uploads", json={"files": announced})
        assert upload.status_code == 201, upload.text
        digest = b64encode(hashlib.sha256(files.config).digest()).decode()
        path = f"{upload.headers['location']}/files/adapter_config.json/parts/1"
        digest = f"sha-256=:{b64encode(hashlib.sha256(files.config).digest()).decode()}:"
        started = begin(patient, unit.key, path, body=files.config[:10], method="PUT", content_digest=digest)
        with started as connection:
            head, body = answer(connection)
        assert head.startswith("http/1.1 408")
        assert body["error"]["code"] == "body_too_slow"
        assert client.put(path, content=files.config, headers={"content-digest": digest}).status_code == 204


def test_a_slow_request_with_an_idempotency_key_leaves_no_row(patient: Site) -> None:
    with patient.client(patient.admin_key) as admin:
        owner = make_unit(admin)
    before = idempotency_rows(patient)
    with begin(patient, owner.key, "/v1/adapters/a/versions", body=FIRST, idempotency_key="k", **FORM) as connection:
        head, _ = answer(connection)
    assert head.startswith("http/1.1 408")
    assert idempotency_rows(patient) == before
