"""Token parity: the server's answers equal those of transformers + PEFT on the same weights, token by token."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest
from transformers import LlamaForCausalLM

from app.demo.train import Demo
from tests.support.parity import QUESTIONS, complete, prompt_of
from tests.support.peft_adapters import make_adapter
from tests.support.reference import PeftReference
from tests.support.server import Server

CHURN_ADAPTERS = 6
CHURN_REQUESTS = 300


@pytest.mark.parametrize("question", QUESTIONS)
async def test_each_alone(server: Server, keys: dict[str, str], reference: PeftReference, question: str) -> None:
    ids = reference.encode(prompt_of(question))
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        for unit, key in keys.items():
            assert await complete(client, key, unit, prompt_of(question)) == reference.greedy(ids, unit, 40)
            assert await complete(client, key, "demo", prompt_of(question)) == reference.greedy(ids, None, 40)


async def test_all_in_one_batch_base_requests_among_them(
    server: Server, keys: dict[str, str], reference: PeftReference
) -> None:
    cases = [(unit, model, q) for unit in keys for model in (unit, "demo") for q in QUESTIONS for _ in range(3)]
    random.Random(0).shuffle(cases)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        answers = await asyncio.gather(
            *[complete(client, keys[unit], model, prompt_of(question)) for unit, model, question in cases]
        )
    for (_, model, question), answer in zip(cases, answers, strict=True):
        adapter = None if model == "demo" else model
        assert answer == reference.greedy(reference.encode(prompt_of(question)), adapter, 40), (model, question)


@pytest.mark.slow
async def test_more_adapters_than_slots_and_hundreds_of_requests(
    server: Server, trained_demo: Demo, tmp_path: Path
) -> None:
    """Six adapters share two slots and three places, with base requests in between: a stale slot would show."""
    adapters = {
        f"churn-{seed}": make_adapter(
            tmp_path / str(seed),
            base=LlamaForCausalLM.from_pretrained(trained_demo.base),
            seed=seed,
            r=8,
            lora_alpha=128,
        )
        for seed in range(CHURN_ADAPTERS)
    }
    churned = PeftReference(trained_demo.base, adapters)
    key = server.tenant("churn")
    for name, directory in adapters.items():
        assert server.publish("churn", name, directory).status_code == 201
    models = [*adapters, "demo"]
    expected = {
        (model, question): churned.greedy(churned.encode(prompt_of(question)), None if model == "demo" else model, 12)
        for model in models
        for question in QUESTIONS
    }
    assert len({tuple(tokens) for tokens in expected.values()}) > len(models), "adapters must differ"
    rng = random.Random(1)
    cases = [(rng.choice(models), rng.choice(QUESTIONS)) for _ in range(CHURN_REQUESTS)]
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        answers = await asyncio.gather(*[complete(client, key, model, prompt_of(q), 12) for model, q in cases])
    wrong = [case for case, answer in zip(cases, answers, strict=True) if answer != expected[case]]
    assert wrong == []
