"""Naive PEFT server of the benchmarks: its answers equal PEFT's."""

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from app.lab.bench import models
from app.lab.bench.open_loop import Generator, Plan, Request
from app.lab.bench.peft_server import NaiveServer
from tests.support.live_server import live_server

PROMPT = [5, 9, 17, 33]
TOKENS = 12


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return models.toy_base(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapters(base):
    paths = models.adapters(base.parents[1], base, 2, (8,), seed=1)
    return {f"adapter-{index}": path for index, path in enumerate(paths)}


@pytest.fixture(scope="module")
def server(base, adapters):
    return NaiveServer(base, adapters)


@pytest.fixture(scope="module")
def url(server):
    with live_server(server.app()) as address:
        yield address


def reference(base, adapter) -> list[int]:
    """Return PEFT's greedy answer, ignoring end-of-text tokens."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        answer = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )
    return answer[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("name", ["adapter-0", "base", "adapter-1"])
def test_each_model_gives_its_own_answer(url, server, base, adapters, name):
    expected = reference(base, adapters.get(name))
    body = {"model": name, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=60).raise_for_status().json()
    assert answer["choices"][0]["text"] == server._tokenizer.decode(expected)
    assert answer["usage"]["completion_tokens"] == TOKENS


async def test_the_load_generator_takes_its_streams(url):
    requests = [Request(0.0, name, {}, PROMPT, TOKENS) for name in ("adapter-0", "adapter-1", "base")]
    run = await Generator(Plan(int(url.rpartition(":")[2]), [*requests, Request(0.0, "unknown", {}, PROMPT, 1)])).run()
    *good, refused = run.samples
    assert [(sample.why, sample.tokens, len(sample.gaps_ms)) for sample in good] == [(None, TOKENS, TOKENS - 1)] * 3
    assert refused.why.startswith("HTTP/1.1 404")
    # Requests run one at a time: the last one's first token comes after the others end.
    assert max(sample.first for sample in good) >= sorted(sample.end for sample in good)[1]
