"""Render cache: a prompt is rendered once, for its token count and for its run."""

import time
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from app.engine.port import Endpoint
from app.engine.vllm.render_cache import NoRoomForAnswer, Rendered, RenderedOnce

MESSAGES = [{"role": "user", "content": "Who are you?"}]
CHAT = ChatCompletionRequest(model="m", messages=MESSAGES)


class Counting:
    """Fake renderer that returns different inputs on each call."""

    model_config = "the base's"

    def __init__(self) -> None:
        self.calls = 0

    async def render_completion(self, request: CompletionRequest) -> list[dict[str, Any]]:
        return [self._input(), self._input()]

    async def render_chat(self, request: ChatCompletionRequest) -> tuple[list[Any], list[dict[str, Any]]]:
        return request.messages, [self._input()]

    def _input(self) -> dict[str, Any]:
        self.calls += 1
        return {"prompt_token_ids": list(range(self.calls)), "arrival_time": 0.0}


@pytest.fixture
def renderer() -> RenderedOnce:
    return RenderedOnce(Counting())


async def test_what_was_rendered_is_given_again_for_its_request_alone(renderer: RenderedOnce) -> None:
    body, same = (CompletionRequest(model="m", prompt=["a", "b"]) for _ in range(2))
    rendered = Rendered(body, await renderer.render(Endpoint.COMPLETIONS, body))
    assert rendered.counts == [1, 2]
    with renderer.knowing(rendered):
        assert await renderer.render_completion(body) is rendered.result
        assert await renderer.render_completion(same) != rendered.result
    assert await renderer.render_completion(body) != rendered.result


async def test_a_chat_has_its_conversation_with_it(renderer: RenderedOnce) -> None:
    body = ChatCompletionRequest(model="m", messages=MESSAGES)
    rendered = Rendered(body, await renderer.render(Endpoint.CHAT, body))
    assert rendered.counts == [1]
    with renderer.knowing(rendered):
        assert await renderer.render_chat(body) == (body.messages, rendered.inputs)


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.CHAT])
async def test_a_prompt_must_leave_room_for_an_answer(endpoint: Endpoint) -> None:
    # Each rendering returns inputs that are one token longer.
    renderer = RenderedOnce(Counting(), longest=6)
    body = CompletionRequest(model="m", prompt="a") if endpoint is Endpoint.COMPLETIONS else CHAT
    prompts = len(Rendered(body, await renderer.render(endpoint, body)).counts)
    for _ in range(5 // prompts - 1):
        await renderer.render(endpoint, body)
    with pytest.raises(NoRoomForAnswer, match="maximum context length is 6 tokens"):
        await renderer.render(endpoint, body)


async def test_to_the_engine_it_comes_when_it_is_run(renderer: RenderedOnce) -> None:
    body = CompletionRequest(model="m", prompt=["a", "b"])
    rendered = Rendered(body, await renderer.render(Endpoint.COMPLETIONS, body))
    before = time.time()
    with renderer.knowing(rendered):
        assert all(before <= one["arrival_time"] <= time.time() for one in rendered.inputs)


async def test_what_was_not_rendered_is_rendered_as_ever(renderer: RenderedOnce) -> None:
    with renderer.knowing(None):
        assert len(await renderer.render_completion(CompletionRequest(model="m", prompt="a"))) == 2
    assert renderer.model_config == "the base's"


async def test_an_error_leaves_nothing_behind(renderer: RenderedOnce) -> None:
    body = CompletionRequest(model="m", prompt="a")
    rendered = Rendered(body, await renderer.render(Endpoint.COMPLETIONS, body))
    with pytest.raises(RuntimeError, match="gone"), renderer.knowing(rendered):
        raise RuntimeError("gone")
    assert await renderer.render_completion(body) != rendered.result
