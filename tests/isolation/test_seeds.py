"""A tenant's seeded prompts with chunked prefill: the engine continues, and the seeds hold."""

import random
from typing import Any

import httpx

from tests.support.server import Server

RESTARTS = "tenora_engine_restarts_total"
#: Token ids of the demo's vocabulary, without the special tokens.
TOKENS = range(10, 600)


def choices(client: httpx.Client, body: dict[str, Any]) -> list[list[int]]:
    answer = client.post("/v1/completions", json=body | {"return_token_ids": True})
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


def test_long_prompts_with_seeds_do_not_end_the_engine(server: Server) -> None:
    restarts, chance = server.metric(RESTARTS), random.Random(1)
    prompts = [chance.choices(TOKENS, k=1500) for _ in range(6)]
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 8, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    with server.client(server.tenant("seeds")) as client:
        found = choices(client, asked | {"prompt": prompts})
        # The prompts are cached now, and each is prefilled in one step.
        assert [choices(client, asked | {"prompt": prompt})[0] for prompt in prompts] == found
    assert server.metric(RESTARTS) == restarts
