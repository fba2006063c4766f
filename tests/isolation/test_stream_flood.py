"""Stream flood: one tenant's streams fill every place or the whole KV cache.

Another tenant's request must be served among them.
"""

import asyncio
import json
from collections.abc import Iterator
from statistics import median
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.reference import PeftReference
from tests.support.server import Server, running

pytestmark = pytest.mark.slow

PLACES, STREAMS, TOKENS, TRIES = 4, 12, 800, 8
#: Blocks of 128 tokens each, one of which vLLM reserves. Streams with this number of tokens fill the rest.
FEW_BLOCKS, SENT = 13, 270
WINDOW = 2
SETTINGS = {
    "TENORA_ENGINE__MAX_LORA_RANK": "16",
    "TENORA_ENGINE__MAX_MODEL_LEN": "1024",
    "TENORA_ENGINE__DTYPE": "float32",
}
PROMPTS = [f"[INST] {word} [/INST]" for word in ("one", "two", "three")]


@pytest.fixture(scope="module", params=[0, FEW_BLOCKS], ids=["much room", "little room"])
def crowded(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Server]:
    blocks = {"num_gpu_blocks_override": request.param} if request.param else {}
    places = {"TENORA_ENGINE__EXTRA_ARGS": json.dumps({"max_num_seqs": PLACES} | blocks)}
    with running(tmp_path_factory.mktemp("crowded"), trained_demo.base, **SETTINGS, **places) as server:
        yield server


@pytest.fixture(scope="module")
def narrow(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Engine with more places than the window admits."""
    window = {"TENORA_QUEUE__WINDOW": str(WINDOW)}
    with running(tmp_path_factory.mktemp("narrow"), trained_demo.base, **SETTINGS, **window) as server:
        yield server


def publish_two(server: Server, demo: Demo) -> dict[str, str]:
    """Publish two adapters of different tenants; return the tenants' keys by the adapters' names."""
    adapters = dict(list(demo.adapters.items())[:2])
    keys = {name: server.tenant(name) for name in adapters}
    for name, folder in adapters.items():
        assert server.publish(name, name, folder).status_code == 201
    return keys


def body(adapter: str, prompt: str, tokens: int) -> dict[str, Any]:
    asked = {"model": adapter, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return asked | {"stream": True, "return_token_ids": True}


class Streams:
    """Progress of a tenant's streams."""

    def __init__(self, client: httpx.AsyncClient, key: str, adapter: str) -> None:
        self._client, self._headers, self._adapter = client, {"authorization": f"Bearer {key}"}, adapter
        self.tokens = 0

    async def one(self, prompt: str, tokens: int) -> list[int]:
        found: list[int] = []
        asked = body(self._adapter, prompt, tokens)
        async with self._client.stream("POST", "/v1/completions", json=asked, headers=self._headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        found += choice["token_ids"] or ()
                        self.tokens += len(choice["token_ids"] or ())
        return found


async def test_a_request_beside_another_tenants_streams(crowded: Server, trained_demo: Demo) -> None:
    keys = publish_two(crowded, trained_demo)
    (flooding, quiet), reference = keys, PeftReference(trained_demo.base, trained_demo.adapters)
    limits = httpx.Limits(max_connections=STREAMS + 1)
    async with httpx.AsyncClient(base_url=crowded.url, limits=limits, timeout=300) as client:
        flood, other = Streams(client, keys[flooding], flooding), Streams(client, keys[quiet], quiet)
        # The scheduler predicts the length of a tenant's answers from its last ones.
        await asyncio.gather(flood.one(PROMPTS[0], TOKENS), other.one(PROMPTS[0], 1))
        flood.tokens = 0
        sent = [asyncio.create_task(flood.one(PROMPTS[number % 3], TOKENS)) for number in range(STREAMS)]
        while flood.tokens < PLACES * SENT:
            await asyncio.sleep(0.001)
        passed, answers = [], []
        for number in range(TRIES):
            before = flood.tokens
            answers.append(await other.one(PROMPTS[number % 3], 1))
            passed.append(flood.tokens - before)
        assert not any(task.done() for task in sent), "no stream had to end for them"
        flooded = await asyncio.gather(*sent)
    print(f"\nthe flood had {passed} tokens while a request of another tenant was answered")  # noqa: T201
    # Tokens of a step or two. If the streams had to end first, it would be thousands; if it needed another block, 340.
    assert median(passed) <= 10 * PLACES
    assert max(passed) <= 60 * PLACES
    expected = [reference.greedy(reference.encode(prompt), flooding, TOKENS, ignore_eos=True) for prompt in PROMPTS]
    assert flooded == [expected[number % 3] for number in range(STREAMS)]
    first = [reference.greedy(reference.encode(prompt), quiet, 1, ignore_eos=True) for prompt in PROMPTS]
    assert answers == [first[number % 3] for number in range(TRIES)]


async def test_a_window_below_the_engines_places_is_the_bound(narrow: Server, trained_demo: Demo) -> None:
    keys = publish_two(narrow, trained_demo)
    flooding, quiet = keys
    async with httpx.AsyncClient(base_url=narrow.url, timeout=300) as client:
        flood, other = Streams(client, keys[flooding], flooding), Streams(client, keys[quiet], quiet)
        await asyncio.gather(flood.one(PROMPTS[0], TOKENS), other.one(PROMPTS[0], 1))
        flood.tokens = 0
        sent = [asyncio.create_task(flood.one(PROMPTS[number % 3], TOKENS)) for number in range(2 * WINDOW)]
        while flood.tokens < WINDOW * SENT:
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in sent)
        answer = await other.one(PROMPTS[0], 1)
        # The engine could run it without preemption. It waits for a place and gets the next one.
        assert 1 <= sum(task.done() for task in sent) <= WINDOW
        await asyncio.gather(*sent)
    reference = PeftReference(trained_demo.base, trained_demo.adapters)
    assert answer == reference.greedy(reference.encode(PROMPTS[0]), quiet, 1, ignore_eos=True)
