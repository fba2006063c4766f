"""Adapters of the LM head, on an engine whose setting allows them."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from transformers import LlamaForCausalLM

from app.demo.train import Demo
from tests.support.parity import QUESTIONS, complete, prompt_of
from tests.support.peft_adapters import make_adapter
from tests.support.reference import PeftReference
from tests.support.server import Server, running, serving
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

TOKENS = 12


@pytest.fixture(scope="module")
def adapters(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two head adapters, the first with the head in its file, as PEFT saves it by default, and one without."""
    folder = tmp_path_factory.mktemp("heads")
    targets = {
        "head": ["q_proj", "v_proj", "lm_head"],
        "head-alone": ["lm_head"],
        "no-head": ["q_proj", "k_proj", "down_proj"],
    }
    return {
        name: make_adapter(
            folder / name,
            base=LlamaForCausalLM.from_pretrained(trained_demo.base),
            seed=seed,
            r=8,
            lora_alpha=128,
            target_modules=modules,
            save_embedding_layers="auto" if name == "head" else False,
        )
        for seed, (name, modules) in enumerate(targets.items())
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("head-home")


@pytest.fixture(scope="module")
def headed(trained_demo: Demo, home: Path) -> Iterator[Server]:
    with running(home, trained_demo.base, **SLOTS, TENORA_ENGINE__LORA_HEAD="true") as server:
        yield server


async def test_a_batch_of_heads_and_others_answers_as_peft(
    headed: Server, trained_demo: Demo, adapters: dict[str, Path]
) -> None:
    key = headed.tenant("pricing")
    for name, folder in adapters.items():
        answer = headed.publish("pricing", name, folder)
        assert answer.status_code == 201, answer.text
    reference = PeftReference(trained_demo.base, adapters)
    cases = [(model, question) for model in (*adapters, "demo") for question in QUESTIONS for _ in range(3)]
    random.Random(2).shuffle(cases)
    async with httpx.AsyncClient(base_url=headed.url, timeout=300) as client:
        answers = await asyncio.gather(
            *[complete(client, key, model, prompt_of(question), TOKENS) for model, question in cases]
        )
    for (model, question), answer in zip(cases, answers, strict=True):
        adapter = None if model == "demo" else model
        ids = reference.encode(prompt_of(question))
        assert answer == reference.greedy(ids, adapter, TOKENS), (model, question)
    told = {
        one: [reference.greedy(reference.encode(prompt_of(question)), one, TOKENS) for question in QUESTIONS]
        for one in (*adapters, None)
    }
    assert all(told[one] != told[other] for one, other in itertools.combinations(told, 2)), "adapters must differ"


def test_logprobs_of_prompts_are_refused_and_the_engine_goes_on(headed: Server) -> None:
    with headed.client(headed.tenant("pricing")) as client:
        body = {"model": "demo", "prompt": ["a b c", "d e f"], "max_tokens": 2, "echo": True, "logprobs": 1}
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 400
        assert "TENORA_ENGINE__LORA_HEAD" in refused.json()["error"]["message"]
        parameters = {"decoder_input_details": True, "max_new_tokens": 2}
        refused = client.post("/generate", json={"inputs": "a b c", "parameters": parameters})
        assert refused.status_code in {400, 422}
        answered = client.post("/v1/completions", json={**body, "echo": False})
        assert answered.status_code == 200
    assert headed.is_ready()


def test_a_server_without_lora_head_refuses_only_that_version(headed: Server, home: Path, trained_demo: Demo) -> None:
    """This test is the last one: the first server has ended, and another server serves its registry."""
    key = headed.tenant("pricing")
    headed.process.terminate()
    headed.process.wait(60)
    with serving(home, trained_demo.base, headed.admin_key, **SLOTS) as plain, plain.client(key) as client:
        body = {"prompt": prompt_of(QUESTIONS[0]), "max_tokens": 2}
        refused = client.post("/v1/completions", json={**body, "model": "head"})
        assert refused.status_code in {409, 503}, refused.text
        assert "TENORA_ENGINE__LORA_HEAD" in refused.json()["error"]["message"]
        assert client.post("/v1/completions", json={**body, "model": "no-head"}).status_code == 200
        with plain.client(plain.admin_key) as admin:
            shown = admin.get("/admin/tenants/pricing/adapters/head/versions/1").json()
        assert shown["state"] == "ready", "it is served again where the setting is on"
