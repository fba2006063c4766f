"""Revocation or expiry of a key, or a disabled tenant, ends the requests in flight, on a live server."""

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import httpx
import pytest
from starlette.types import Message

from app.api.version_files import answer_of
from app.database.migrate import upgrade
from app.database.session import Database
from app.engine.port import Answer, AnswerEvent, EngineRequest, TokenUsage
from app.main import create_app
from app.services.access.key_watch import KeyWatch
from app.services.publishing.export import ExportedFile
from app.settings import Settings
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, set_up
from tests.support.site import Site, Unit, make_unit

USED = TokenUsage(prompt_tokens=5, cached_tokens=0, output_tokens=3, ttft_s=0.1)


@dataclass
class Endless(NoEngine):
    """Engine whose streams send one token and never end, and whose whole answers never arrive."""

    asked: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    async def answer(self, request: EngineRequest) -> Answer:
        self.asked.append(request.request_id)
        if request.body.get("stream"):
            return _Tokens(self, request.request_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.end(request.request_id)
        raise AssertionError

    def end(self, request_id: str) -> None:
        self.usages.setdefault(request_id, USED)
        self.closed.add(request_id)


class _Tokens:
    def __init__(self, engine: Endless, request_id: str) -> None:
        self._engine, self._request_id, self._told = engine, request_id, False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        if self._told:
            await asyncio.Event().wait()
        self._told = True
        choice = {"index": 0, "text": "x", "token_ids": [1], "finish_reason": None}
        logprobs = {"tokens": ["x"], "token_logprobs": [-0.5], "top_logprobs": [{}]}
        event = {"choices": [{**choice, "delta": {"content": "x"}, "logprobs": logprobs, "prompt_token_ids": [1]}]}
        return AnswerEvent(f"data: {json.dumps(event)}\n\n", 1)

    async def aclose(self) -> None:
        self._engine.end(self._request_id)


@pytest.fixture(scope="module")
def endless(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    engine = Endless()
    settings = Settings(
        home=tmp_path_factory.mktemp("endless"), base_model=str(base), engine={"max_lora_rank": MAX_RANK}
    )
    admin_key = asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=engine)) as url:
        yield Site(url, admin_key, settings, engine)


@pytest.fixture
def platform(endless: Site) -> Iterator[httpx.Client]:
    with endless.client(endless.admin_key) as client:
        yield client


@pytest.fixture
def owner(platform: httpx.Client) -> Unit:
    return make_unit(platform)


def revoke(platform: httpx.Client, owner: Unit) -> None:
    key_id = owner.key.split("_")[1]
    assert platform.delete(f"/admin/tenants/{owner.slug}/keys/{key_id}").status_code == 204


def rotate(platform: httpx.Client, owner: Unit) -> None:
    key_id = owner.key.split("_")[1]
    path = f"/admin/tenants/{owner.slug}/keys/{key_id}/rotate"
    assert platform.post(path, json={"grace_s": 0}).status_code == 201


def disable(platform: httpx.Client, owner: Unit) -> None:
    assert platform.patch(f"/admin/tenants/{owner.slug}", json={"disabled": True}).status_code == 200


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "stream": True},
    "/v1/responses": {"input": "hi", "stream": True},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True},
    "/generate_stream": {"inputs": "hi"},
    "/": {"inputs": "hi", "stream": True},
}


#: Type of the last event, for APIs whose last event has no code.
LAST = {"/v1/responses": "response.failed", "/v1/messages": "authentication_error"}


def record(site: Site, request_id: str) -> tuple[int, int] | None:
    """Return status and output tokens of a request, or None before its usage record is written."""
    with contextlib.closing(sqlite3.connect(site.settings.home / "tenora.db")) as registry:
        found = registry.execute("select status, output_tokens from usage where request_id = ?", (request_id,))
        return found.fetchone()


def engine_of(site: Site) -> Endless:
    assert isinstance(site.engine, Endless)
    return site.engine


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. The time limit of the test run ends an endless wait."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


@pytest.mark.parametrize(
    ("path", "end"),
    [*((path, revoke) for path in STREAMS), ("/v1/completions", rotate), ("/generate_stream", disable)],
)
def test_a_stream_ends_with_its_key(
    endless: Site, platform: httpx.Client, owner: Unit, path: str, end: Callable[[httpx.Client, Unit], None]
) -> None:
    neighbour = make_unit(platform)
    with (
        endless.client(owner.key) as client,
        endless.client(neighbour.key) as other,
        client.stream("POST", path, json=STREAMS[path]) as answer,
        other.stream("POST", path, json=STREAMS[path]) as beside,
    ):
        assert answer.status_code == 200
        lines, others = answer.iter_lines(), beside.iter_lines()
        assert any('"x"' in line for line in lines)
        assert any('"x"' in line for line in others)
        end(platform, owner)
        *_, last = [line for line in lines if line]
        told = json.loads(last.partition(":")[2])
        assert "is no longer valid" in json.dumps(told)
        names = [told.get("error_type"), told.get("type")]
        names += [told["error"].get(name) for name in ("code", "type") if isinstance(told.get("error"), dict)]
        assert LAST.get(path, "invalid_api_key") in names
        request_id, neighbours = answer.headers["x-request-id"], beside.headers["x-request-id"]
        assert request_id in engine_of(endless).closed
        assert neighbours not in engine_of(endless).closed
        until(lambda: record(endless, request_id) is not None)
        assert record(endless, request_id) == (401, 3)
        assert record(endless, neighbours) is None
    until(lambda: record(endless, neighbours) is not None)
    assert record(endless, neighbours) == (499, 3)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"]
)
def test_a_whole_answer_ends_with_its_key(endless: Site, platform: httpx.Client, owner: Unit, path: str) -> None:
    asked = len(engine_of(endless).asked)
    body = {name: value for name, value in (STREAMS.get(path) or {"inputs": "hi"}).items() if name != "stream"}
    answers: list[httpx.Response] = []

    def ask() -> None:
        with endless.client(owner.key) as client:
            answers.append(client.post(path, json=body))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: len(engine_of(endless).asked) > asked)
    revoke(platform, owner)
    asking.join()
    assert [answer.status_code for answer in answers] == [401]
    request_id = engine_of(endless).asked[asked]
    until(lambda: record(endless, request_id) is not None)
    assert record(endless, request_id) == (401, 3)


def test_what_a_stream_took_of_its_tenants_limits_is_given_back(
    endless: Site, platform: httpx.Client, owner: Unit
) -> None:
    limits = {"limits": {"concurrent_requests": 1}}
    assert platform.patch(f"/admin/tenants/{owner.slug}", json=limits).status_code == 200
    made = platform.post(f"/admin/tenants/{owner.slug}/keys", json={"name": "second"}).json()
    with (
        endless.client(owner.key) as client,
        endless.client(made["key"]) as second,
        client.stream("POST", "/v1/completions", json=STREAMS["/v1/completions"]) as answer,
    ):
        assert second.post("/v1/completions", json=STREAMS["/v1/completions"]).status_code == 429
        revoke(platform, owner)
        assert "is no longer valid" in "".join(answer.iter_lines())

        def admitted() -> bool:
            with second.stream("POST", "/v1/completions", json=STREAMS["/v1/completions"]) as answer:
                return answer.status_code == 200

        until(admitted)


async def test_a_download_ends_with_its_key(tmp_path: Path) -> None:
    """Cut off a download whose reader has stalled. The key is not in the registry, so it counts as invalid."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"
    upgrade(url)
    database = Database(url)
    watch, released, sent, sending = KeyWatch(database), [], [], asyncio.Event()
    (tmp_path / "weights").write_bytes(b"x" * 2**21)

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    lease: Any = SimpleNamespace(release=lambda: released.append(True))
    file = ExportedFile(
        name="adapter_model.safetensors", path=tmp_path / "weights", size=2**21, digest="0" * 64, lease=lease
    )
    state = {"caller": SimpleNamespace(key_id="0" * 16, session=None), "gateway": SimpleNamespace(key_watch=watch)}
    answering = asyncio.create_task(answer_of(file)({"type": "http", "state": state}, receive, send))
    await sending.wait()
    await watch.check()
    await answering
    assert sum(len(message.get("body", b"")) for message in sent) < 2**21
    assert released == [True]
    await database.close()
