"""64 adapters through 4 slots with a day's worth of failures: every answer comes from the requested adapter."""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from transformers import LlamaForCausalLM

from app.demo.train import Demo
from tests.support.peft_adapters import make_adapter
from tests.support.reference import PeftReference
from tests.support.server import Server, running

pytestmark = [pytest.mark.slow, pytest.mark.long]

logger = logging.getLogger(__name__)

ADAPTERS = 64
SLOTS = 4
REQUESTS = 1000
CLIENTS = 24
TOKENS = 6
TENANTS = 8
PROMPTS = ("[INST] What is coffee? [/INST]", "[INST] What is the price of tea? [/INST]")
#: Adapter corrupted on this server's disk before its first use, and adapter deleted during its requests.
BROKEN, DELETED = 7, 23
#: One request in this many is cancelled, before or after its first token; before it, after at most this many seconds.
GIVEN_UP, FIRST_TOKEN_S = 9, 0.05
#: Seconds after which an answer is late, and a limit for the whole traffic: a server that hangs fails here.
LATE_S, TOO_LONG_S = 60, 900


@pytest.fixture(scope="module")
def churned(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "TENORA_ENGINE__MAX_LORAS": str(SLOTS),
        # Room for a few adapters only: most requests must stage theirs again.
        "TENORA_ENGINE__HOST_BYTES": str(2**20),
        "TENORA_ENGINE__MAX_LORA_RANK": "16",
        "TENORA_ENGINE__DTYPE": "float32",
    }
    with running(tmp_path_factory.mktemp("churn"), trained_demo.base, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def made(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        make_adapter(
            folder / str(number),
            base=LlamaForCausalLM.from_pretrained(trained_demo.base),
            seed=100 + number,
            r=8,
            lora_alpha=128,
        )
        for number in range(ADAPTERS)
    ]


@pytest.fixture(scope="module")
def expected(trained_demo: Demo, made: list[Path]) -> dict[tuple[int | None, int], list[int]]:
    """PEFT's answers by adapter (None: the base) and prompt."""
    reference = PeftReference(trained_demo.base, {str(number): path for number, path in enumerate(made)})
    ids = [reference.encode(prompt) for prompt in PROMPTS]
    return {
        (number, prompt): reference.greedy(ids[prompt], None if number is None else str(number), TOKENS, True)
        for number in [None, *range(ADAPTERS)]
        for prompt in range(len(PROMPTS))
    }


class Traffic:
    """Round-robin requests for all adapters, by clients that sometimes cancel."""

    def __init__(self, server: Server, keys: list[str], expected: dict[tuple[int | None, int], list[int]]) -> None:
        self._server, self._keys, self._expected = server, keys, expected
        self._random = random.Random(4)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[Any] = []
        self.sent = 0

    async def run(self, requests: int, client: httpx.AsyncClient, on_request: Any = None) -> None:
        """Send this number of requests, a few at a time. ``on_request`` is awaited before each with its number."""
        last = self.sent + requests

        async def one_client() -> None:
            while self.sent < last:
                self.sent += 1
                if on_request:
                    await on_request(self.sent)
                await self._one(client, self.sent)

        await asyncio.gather(*[one_client() for _ in range(CLIENTS)])

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        adapter = None if self._random.random() < 0.1 else self._random.randrange(ADAPTERS)
        prompt = self._random.randrange(len(PROMPTS))
        body = {
            "model": "demo" if adapter is None else name(adapter),
            "prompt": PROMPTS[prompt],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        headers = {"authorization": f"Bearer {self._keys[tenant(adapter or 0)]}"}
        # Counted in tokens, since the machine's speed is unknown.
        wanted = self._random.randrange(TOKENS) if number % GIVEN_UP == 0 else TOKENS
        patience = LATE_S if wanted else self._random.uniform(0, FIRST_TOKEN_S)
        wanted = wanted or TOKENS
        try:
            async with (
                asyncio.timeout(patience),
                client.stream("POST", "/v1/completions", json=body, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    await answer.aread()
                    self.outcomes[f"{answer.status_code} {adapter}"] += 1
                    return
                tokens = await first_tokens(answer, wanted)
        except TimeoutError:
            self.outcomes["late" if patience == LATE_S else "given up"] += 1
            return
        self.outcomes["answered" if wanted == TOKENS else "given up"] += 1
        if tokens != self._expected[adapter, prompt][:wanted]:
            self.wrong.append((adapter, prompt, tokens))


async def first_tokens(answer: httpx.Response, wanted: int) -> list[int]:
    """Read up to this number of tokens of a streamed answer, then stop reading."""
    tokens: list[int] = []
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                tokens += choice["token_ids"] or ()
        if len(tokens) >= wanted < TOKENS:
            return tokens[:wanted]
    return tokens


def name(number: int) -> str:
    return f"churn-{number}"


def tenant(number: int) -> int:
    return number % TENANTS


def handles(server: Server) -> int:
    processes = [psutil.Process(server.process.pid), *server.engine_processes()]
    return sum(process.num_fds() for process in processes)


def break_on_disk(server: Server, adapter: Path) -> None:
    """Truncate the node's copy of an adapter after the server has verified it, as a bad disk would."""
    content = (adapter / "adapter_model.safetensors").read_bytes()
    copies = [
        path for path in (server.home / "cache").glob("*/adapter_model.safetensors") if path.read_bytes() == content
    ]
    assert len(copies) == 1
    with copies[0].open("r+b") as copy:
        copy.truncate(len(content) // 2)


async def test_every_answer_is_its_own_adapters_and_nothing_is_left(
    churned: Server, made: list[Path], expected: dict[tuple[int | None, int], list[int]]
) -> None:
    assert len({tuple(expected[number, 0]) for number in range(ADAPTERS)}) == ADAPTERS, "each answers recognisably"
    keys = [churned.tenant(f"churn-{number}") for number in range(TENANTS)]
    for number, path in enumerate(made):
        assert churned.publish(f"churn-{tenant(number)}", name(number), path).status_code == 201
    traffic = Traffic(churned, keys, expected)
    engine = {process.pid for process in churned.engine_processes()}
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        asyncio.timeout(TOO_LONG_S),
        httpx.AsyncClient(base_url=churned.url, timeout=2 * LATE_S, limits=limits) as client,
    ):
        await traffic.run(200, client)
        await settled(churned, client)
        before, tasks = handles(churned), churned.metric("tenora_process_tasks")
        break_on_disk(churned, made[BROKEN])
        await traffic.run(REQUESTS, client, lambda number: delete_in_flight(churned, client, number))
        evictions = await settled(churned, client)
        after = handles(churned)
        assert churned.metric("tenora_process_tasks") <= tasks + 2, "tasks that repeat come and go"

    logger.info("%s; evictions %s", dict(traffic.outcomes), evictions)
    assert not traffic.wrong
    assert not traffic.outcomes["late"], traffic.outcomes
    assert min(evictions["slot"], evictions["host"]) > REQUESTS // 10, "slots and host memory were fought for"
    refused = {key for key in traffic.outcomes if key[0].isdigit()}
    assert refused <= {f"409 {BROKEN}", f"404 {DELETED}", f"410 {DELETED}"}, traffic.outcomes
    assert f"409 {BROKEN}" in refused
    assert {f"404 {DELETED}", f"410 {DELETED}"} & refused
    assert traffic.outcomes["given up"] > REQUESTS // GIVEN_UP // 4, "patience is short enough to matter"
    assert {process.pid for process in churned.engine_processes()} == engine, "the engine never died"
    assert churned.metric("tenora_engine_restarts_total") == 0
    assert after <= before + 4, "connections of the keep-alive kind come and go, leaks come with every request"


async def delete_in_flight(server: Server, client: httpx.AsyncClient, number: int) -> None:
    if number == REQUESTS // 2:
        path = f"/admin/tenants/churn-{tenant(DELETED)}/adapters/{name(DELETED)}?force=true"
        answer = await client.delete(path, headers={"authorization": f"Bearer {server.admin_key}"})
        assert answer.status_code == 202, answer.text


async def settled(server: Server, client: httpx.AsyncClient) -> dict[str, int]:
    """Wait until the server is idle and holds no leases, check the tiers, and return their evictions."""
    headers = {"authorization": f"Bearer {server.admin_key}"}
    async with asyncio.timeout(30):
        while True:
            view = (await client.get("/admin/engine?limit=1000", headers=headers)).json()
            if not any(
                [
                    view["queue"]["running"],
                    view["queue"]["waiting"],
                    *(version["leases"] for version in view["versions"]["data"]),
                ]
            ):
                break
            await asyncio.sleep(0.1)
    tiers = {tier["tier"]: tier for tier in view["tiers"]}
    assert tiers["host"]["used_bytes"] <= tiers["host"]["limit_bytes"]
    assert sum(version["tier"] == "slot" for version in view["versions"]["data"]) <= SLOTS
    return {name: tier["evictions"] for name, tier in tiers.items()}
