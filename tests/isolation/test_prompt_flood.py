"""Prompt flood: one tenant sends more prompts than the engine prefills in seconds.

Another tenant's prompt must be among the next ones to be prefilled.
"""

import asyncio
import random
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.slow

FLOOD = 100
#: Nearly the demo base's context length; token ids of its vocabulary without the special tokens.
LENGTH, TOKENS = 1500, range(10, 700)


def body(length: int) -> dict[str, Any]:
    return {"model": "demo", "prompt": random.choices(TOKENS, k=length), "max_tokens": 1, "temperature": 0}


async def test_long_prompts_of_another_tenant(server: Server) -> None:
    attacker, victim = server.tenant("flood"), server.tenant("beside-the-flood")
    answered = 0
    limits = httpx.Limits(max_connections=FLOOD + 1)

    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=120) as client:

        async def ask(key: str, length: int) -> None:
            sent = await client.post("/v1/completions", json=body(length), headers={"authorization": f"Bearer {key}"})
            assert sent.status_code == 200, sent.text

        async def flood() -> None:
            nonlocal answered
            await ask(attacker, LENGTH)
            answered += 1

        await ask(victim, 8)
        sent = [asyncio.create_task(flood()) for _ in range(FLOOD)]
        # By then all requests are in flight.
        while answered < 3:
            await asyncio.sleep(0.001)
        before = answered
        await ask(victim, 8)
        passed = answered - before
        await asyncio.gather(*sent)
    print(f"\n{passed} of {FLOOD - before} prompts of the flood were answered before another tenant's")  # noqa: T201
    assert passed < (FLOOD - before) / 2
