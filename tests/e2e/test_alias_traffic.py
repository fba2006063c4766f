"""Fifty changes of one alias under steady traffic: clients see nothing but the answering version change."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from transformers import LlamaForCausalLM

from app.demo.train import Demo
from tests.support.peft_adapters import make_adapter
from tests.support.reference import PeftReference
from tests.support.server import Server, every_step_size, running
from tests.support.server_fixtures import SLOTS

pytestmark = [pytest.mark.slow, pytest.mark.long]

logger = logging.getLogger(__name__)

CLIENTS = 20
CHANGES = 50
PUBLISHES = 14
TOKENS = 8
PROMPT = "[INST] What is coffee? [/INST]"
ADAPTER = "/v1/adapters/steady"


@dataclass(frozen=True)
class Answer:
    """One answered request: version and tokens of the answer, and the times at which it was sent and answered."""

    version: int
    token_ids: tuple[int, ...]
    sent: float
    begun: float


@dataclass
class Held:
    """State of the alias from the request of one change until the confirmation of the next."""

    numbers: frozenset[int]
    since: float
    until: float = float("inf")


@dataclass
class Timeline:
    """Every state of the alias, with its longest possible duration."""

    states: list[Held] = field(default_factory=list)

    def changed(self, numbers: set[int], asked: float, confirmed: float) -> None:
        if self.states:
            self.states[-1].until = confirmed
        self.states.append(Held(frozenset(numbers), asked))

    def held(self, answer: Answer) -> set[int]:
        during = (state for state in self.states if state.since <= answer.begun and state.until >= answer.sent)
        return {number for state in during for number in state.numbers}


@pytest.fixture(scope="module")
def server(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short smoke checks (128 tokens), whose steps are no larger than those of ``every_step_size``."""
    settings = SLOTS | {"TENORA_ENGINE__MAX_MODEL_LEN": "512"}
    with running(tmp_path_factory.mktemp("steady-server"), trained_demo.base, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def made(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters with random weights, so that each gives distinct answers."""
    folder = tmp_path_factory.mktemp("steady")
    return [
        make_adapter(
            folder / str(seed),
            base=LlamaForCausalLM.from_pretrained(trained_demo.base),
            seed=seed,
            r=8,
            lora_alpha=128,
        )
        for seed in range(1, PUBLISHES + 1)
    ]


async def test_only_versions_of_the_alias_answer_and_none_fails(
    server: Server, trained_demo: Demo, made: list[Path]
) -> None:
    key = server.tenant("steady")
    reference = PeftReference(trained_demo.base, {str(n): path for n, path in enumerate(made, start=1)})
    ids = reference.encode(PROMPT)
    expected = {n: tuple(reference.greedy(ids, str(n), TOKENS)) for n in range(1, PUBLISHES + 1)}
    assert len(set(expected.values())) == PUBLISHES, "each version answers recognisably"

    timeline, answers, done = Timeline(), list[Answer](), asyncio.Event()
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=headers) as client:
        await publish(client, made[0], timeline, 1)
        # One-time allocations of the engine must happen before its memory is measured.
        await asyncio.to_thread(every_step_size, server, key, "steady")
        traffic = [asyncio.create_task(ask_until(done, client, answers)) for _ in range(CLIENTS)]
        await until_answered(answers, 20 * CLIENTS)
        before = engine_memory(server)
        for change in plan(random.Random(7)):
            await change.apply(client, made, timeline)
            await until_answered(answers, len(answers) + CLIENTS // 2)
        done.set()
        await asyncio.gather(*traffic)
        after = engine_memory(server)

    assert all(answer.token_ids == expected[answer.version] for answer in answers)
    strangers = [answer for answer in answers if answer.version not in timeline.held(answer)]
    assert not strangers
    assert len({answer.version for answer in answers}) > PUBLISHES // 2
    logger.info("%d answers, %d states, memory %.3f of before", len(answers), len(timeline.states), after / before)
    # It may be less: the engine returns freed memory once a minute, on a busy machine after the first measurement.
    assert after / before <= 1.05


@dataclass(frozen=True)
class Change:
    """One change of the alias: publish a version, move to it, split traffic with another version, or roll back."""

    kind: str
    number: int = 0
    other: int = 0

    async def apply(self, client: httpx.AsyncClient, made: list[Path], timeline: Timeline) -> None:
        if self.kind == "publish":
            await publish(client, made[self.number - 1], timeline, self.number)
            return
        asked = time.monotonic()
        path = f"{ADAPTER}/aliases/default"
        if self.kind == "rollback":
            answer = await client.post(f"{path}/rollback")
        elif self.kind == "move":
            answer = await client.put(path, json={"version": self.number})
        else:
            answer = await client.put(path, json={"weights": {str(self.number): 50, str(self.other): 50}})
        assert answer.status_code == 200, answer.text
        timeline.changed(numbers_of(answer.json()), asked, time.monotonic())


def plan(draw: random.Random) -> Iterator[Change]:
    """Plan the changes. The first one publishes, so that there is a second version to move to."""
    others = itertools.cycle(["move", "split", "rollback"])
    kinds = ["publish"] * (PUBLISHES - 2) + list(itertools.islice(others, CHANGES - PUBLISHES + 1))
    draw.shuffle(kinds)
    newest = 1
    for kind in ["publish", *kinds]:
        if kind == "publish":
            newest += 1
            yield Change(kind, newest)
        else:
            number, other = draw.sample(range(1, newest + 1), 2)
            yield Change(kind, number, other)


async def publish(client: httpx.AsyncClient, folder: Path, timeline: Timeline, number: int) -> None:
    names = ("adapter_config.json", "adapter_model.safetensors")
    asked = time.monotonic()
    answer = await client.post(f"{ADAPTER}/versions", files={name: (folder / name).read_bytes() for name in names})
    assert (answer.status_code, answer.json().get("version")) == (201, number), answer.text
    timeline.changed({number}, asked, time.monotonic())


async def ask_until(done: asyncio.Event, client: httpx.AsyncClient, answers: list[Answer]) -> None:
    body = {"model": "steady", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    while not done.is_set():
        sent = time.monotonic()
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        version = int(answer.headers["x-tenora-adapter"].partition("@")[2])
        answers.append(Answer(version, tuple(answer.json()["choices"][0]["token_ids"]), sent, time.monotonic()))


async def until_answered(answers: list[Answer], many: int) -> None:
    while len(answers) < many:
        await asyncio.sleep(0.01)


def numbers_of(alias: dict[str, Any]) -> set[int]:
    return {int(number) for number in alias["weights"]}


def engine_memory(server: Server) -> int:
    """Return the resident bytes of the engine's processes."""
    return sum(psutil.Process(child.pid).memory_info().rss for child in server.engine_processes())
