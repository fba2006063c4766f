"""Cached look-ups have the values that vLLM computes for every request."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.inputs.engine import TokensInput
from vllm.renderers.base import BaseRenderer
from vllm.renderers.inputs.preprocess import extract_prompt_components

from app.engine.vllm.patches.cached_lookups import _prompt_text, work_out_once

EOS = 7


class Renderer:
    """Renderer with vLLM's prompt preparation and fake steps that record their asyncio task."""

    render_prompts_async = BaseRenderer.render_prompts_async
    tokenize_prompts_async = BaseRenderer.tokenize_prompts_async

    def __init__(self) -> None:
        self.asked, self.tasks = 0, list[Any]()

    def get_eos_token_id(self) -> int:
        self.asked += 1
        return EOS

    async def _render_prompt_async(self, prompt: Any) -> Any:
        self.tasks.append(asyncio.current_task())
        return "rendered", prompt

    async def tokenize_prompt_async(self, prompt: Any, params: Any) -> Any:
        self.tasks.append(asyncio.current_task())
        return "tokenized", prompt, params


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the class's original method after each test."""
    own = OpenAIServingCompletion._extract_prompt_text
    monkeypatch.setattr(OpenAIServingCompletion, "_extract_prompt_text", own)


def engine() -> Any:
    return SimpleNamespace(renderer=Renderer())


@pytest.mark.parametrize("prompts", [["a"], ["a", "b", "c"]])
async def test_prompts_are_prepared_as_vllm_does(prompts: list[str]) -> None:
    plain, llm = Renderer(), engine()
    work_out_once(llm)
    expected = await plain.render_prompts_async(prompts), await plain.tokenize_prompts_async(prompts, "p")
    found = await llm.renderer.render_prompts_async(prompts), await llm.renderer.tokenize_prompts_async(prompts, "p")
    assert found == expected
    assert (set(llm.renderer.tasks) == {asyncio.current_task()}) is (len(prompts) == 1)


async def test_no_prompt_at_all_is_refused_as_ever() -> None:
    llm = engine()
    work_out_once(llm)
    with pytest.raises(ValueError, match="at least one prompt"):
        await llm.renderer.render_prompts_async([])
    assert await llm.renderer.tokenize_prompts_async([], "p") == []


def test_the_end_token_is_looked_up_once() -> None:
    llm = engine()
    work_out_once(llm)
    assert [llm.renderer.get_eos_token_id() for _ in range(3)] == [EOS, EOS, EOS]
    assert llm.renderer.asked == 1


@pytest.mark.parametrize(
    "prompt",
    [
        TokensInput(type="token", prompt_token_ids=[1, 2]),
        TokensInput(type="token", prompt_token_ids=[1, 2], prompt="ab"),
        {"prompt_token_ids": [1], "prompt": "a"},
        {"prompt": "a"},
        [1, 2],
        "ab",
    ],
)
def test_a_prompts_text_is_the_one_that_vllm_finds(prompt: Any) -> None:
    serving = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
    serving.model_config = SimpleNamespace(is_encoder_decoder=False)
    assert _prompt_text(serving, prompt) == extract_prompt_components(serving.model_config, prompt).text
