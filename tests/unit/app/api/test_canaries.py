"""Canaries under traffic, on a live server with a scripted engine."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from app.engine.port import Answer, AnswerEvent, EngineRequest
from app.engine.status import EngineState
from app.main import create_app
from app.settings import Settings
from tests.support.canary_traffic import Seen, breach_of, steady_traffic
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, PeftFiles, set_up
from tests.support.site import Unit, make_unit, parts

#: Longest time in seconds from the breach, as the registry records it, until only the old version answers.
BACK_WITHIN_S = 5.0


class Scripted(NoEngine):
    """Answer at once with the version's id, or without text if it is mute. A stream waits for ``may_stream``."""

    state = EngineState.READY

    def __init__(self) -> None:
        super().__init__()
        self.mute: set[int] = set()
        self.may_stream = threading.Event()

    async def answer(self, request: EngineRequest) -> Answer:
        version_id = request.adapter.version_id if request.adapter else 0
        text = "" if version_id in self.mute else f"version {version_id}"
        if request.body.get("stream"):
            return _Events(text, self.may_stream)
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        return {"id": request.request_id, "object": "text_completion", "model": request.model, "choices": [choice]}


class _Events:
    def __init__(self, text: str, may_go_on: threading.Event) -> None:
        event = f'data: {{"choices": [{{"index": 0, "text": "{text}"}}]}}\n\n'
        self._events, self._may_go_on = iter((event, event, "data: [DONE]\n\n")), may_go_on
        self._first = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        if not self._first:
            await asyncio.to_thread(self._may_go_on.wait, 30)
        self._first = False
        for event in self._events:
            return AnswerEvent(event, 1)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        pass


class Stage:
    """A live server and a tenant whose adapter ``pricing`` has versions 1 and 2, with the alias ``stable`` on 1."""

    def __init__(self, url: str, admin_key: str, engine: Scripted) -> None:
        self.url, self.engine = url, engine
        self.admin = self.client(admin_key)
        self.unit: Unit = make_unit(self.admin)
        self.path = f"/admin/tenants/{self.unit.slug}/adapters/pricing"

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def alias(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.get(f"{self.path}/aliases/stable").json()
        return found

    def ids(self) -> dict[int, int]:
        """Ask for both versions and return the engine's id of each."""
        found = {}
        with self.client(self.unit.key) as caller:
            for number in (1, 2):
                body = {"model": f"pricing@{number}", "prompt": "x"}
                text = caller.post("/v1/completions", json=body).json()["choices"][0]["text"]
                found[number] = int(text.removeprefix("version "))
        return found


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Scripted]]:
    """URL, platform key and engine of a live server."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, base_model=str(base), engine={"max_lora_rank": MAX_RANK})
    admin_key, engine = asyncio.run(set_up(settings)), Scripted()
    with live_server(create_app(settings, engine=engine)) as url:
        yield url, admin_key, engine


@pytest.fixture
def stage(server: tuple[str, str, Scripted], files: PeftFiles, other_files: PeftFiles) -> Iterator[Stage]:
    stage = Stage(*server)
    for uploaded in (files, other_files):
        assert stage.admin.post(f"{stage.path}/versions", files=parts(uploaded)).status_code == 201
    assert stage.admin.put(f"{stage.path}/aliases/stable", json={"version": 1}).status_code == 201
    yield stage
    stage.admin.close()


def traffic(stage: Stage) -> AbstractContextManager[list[Seen]]:
    body = {"model": "pricing:stable", "prompt": "x"}
    return steady_traffic(lambda: stage.client(stage.unit.key), body, callers=4)


def until(condition: Any, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def start(stage: Stage, *steps: tuple[int, int]) -> None:
    policy = {"steps": [{"weight": weight, "seconds": seconds} for weight, seconds in steps], "min_requests": 10}
    answer = stage.admin.put(f"{stage.path}/aliases/stable/canary", json={"version": 2, "policy": policy})
    assert answer.status_code == 201, answer.text


def test_a_mute_candidate_is_rolled_back_within_seconds(stage: Stage) -> None:
    stage.engine.mute.add(stage.ids()[2])
    with traffic(stage) as seen:
        until(lambda: len(seen) > 20)
        started = time.time()
        start(stage, (5, 3600))
        until(lambda: stage.alias()["weights"] == {"1": 100})
        back = time.time()
        known = len(seen)
        until(lambda: len(seen) > known + 50)
    canary = stage.alias()["canary"]
    assert (canary["state"], canary["details"]["code"]) == ("rolled_back", "empty_rate")
    found = canary["details"]["candidate"]
    assert found["empties"] == found["requests"] >= 3
    assert "empty or non-finite" in canary["reason"]
    breach = breach_of(seen, "pricing@2", started)
    last = max(each.began for each in seen if each.version == "pricing@2")
    assert max(back, last) - breach < BACK_WITHIN_S
    assert {each.status for each in seen} == {200}


def test_a_good_candidate_takes_over_under_traffic(stage: Stage) -> None:
    with traffic(stage) as seen:
        start(stage, (50, 1), (100, 1))
        until(lambda: stage.alias()["canary"]["state"] == "promoted")
        known = len(seen)
        until(lambda: len(seen) > known + 20)
    assert stage.alias()["weights"] == {"2": 100}
    assert {each.version for each in seen[-10:]} == {"pricing@2"}
    assert {each.status for each in seen} == {200}
    actions = [change["action"] for change in stage.admin.get(f"{stage.path}/aliases/stable/history").json()["data"]]
    assert actions == ["promote", "canary", "canary", "move"]


def test_a_request_under_way_ends_on_the_version_it_began_with(stage: Stage) -> None:
    ids = stage.ids()
    with stage.client(stage.unit.key) as caller:
        body = {"model": "pricing:stable", "prompt": "x", "stream": True}
        with caller.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["x-tenora-adapter"] == "pricing@1"
            lines = answer.iter_lines()
            assert f"version {ids[1]}" in next(lines)
            assert stage.admin.put(f"{stage.path}/aliases/stable", json={"version": 2}).status_code == 200
            now = caller.post("/v1/completions", json=body | {"stream": False})
            assert now.headers["x-tenora-adapter"] == "pricing@2"
            stage.engine.may_stream.set()
            rest = [line for line in lines if line]
    assert [f"version {ids[1]}" in line for line in rest] == [True, False]
    assert rest[-1] == "data: [DONE]"


def test_a_user_stays_with_one_version_of_a_split(stage: Stage) -> None:
    answer = stage.admin.put(f"{stage.path}/aliases/stable", json={"weights": {"1": 50, "2": 50}})
    assert answer.status_code == 200
    served: dict[str, set[str]] = {}
    with stage.client(stage.unit.key) as caller:
        for number in range(120):
            user = f"user {number % 40}"
            answer = caller.post("/v1/completions", json={"model": "pricing:stable", "prompt": "x", "user": user})
            served.setdefault(user, set()).add(answer.headers["x-tenora-adapter"])
    assert {len(versions) for versions in served.values()} == {1}
    assert {version for versions in served.values() for version in versions} == {"pricing@1", "pricing@2"}
