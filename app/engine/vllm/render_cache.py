"""Reuse of rendered prompts: a prompt that was rendered to count its tokens is not rendered again to run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from app.engine.port import Endpoint


class NoRoomForAnswer(ValueError):
    """Prompt that fills the whole context. vLLM itself refuses it later, without naming the cause."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Request with tokenized prompts.

    Attributes:
        body: vLLM's request. Rendering may have changed it, so ``result`` is valid for this object only.
        result: output of vLLM's renderer: the engine's inputs; for a chat, the conversation comes before them.
    """

    body: BaseModel
    result: Any

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Inputs of the engine, one for each prompt."""
        return _inputs(self.result)

    @property
    def counts(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(one["prompt_token_ids"]) for one in self.inputs]


class RenderedOnce:
    """Proxy of vLLM's renderer that returns known results for known requests, and delegates everything else.

    Args:
        longest: maximum tokens of a prompt and its answer together; None: unknown.
    """

    def __init__(self, renderer: Any, *, longest: int | None = None) -> None:
        self._renderer, self._longest = renderer, longest
        self._known: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    @contextmanager
    def knowing(self, rendered: Rendered | None) -> Iterator[None]:
        """Return this result, inside the context, when its request is rendered."""
        if rendered is None:
            yield
            return
        for item in rendered.inputs:
            # The request enters the engine now. Its earlier wait is not the engine's time.
            item["arrival_time"] = time.time()
        self._known[id(rendered.body)] = rendered.result
        try:
            yield
        finally:
            del self._known[id(rendered.body)]

    async def render(self, endpoint: Endpoint, request: BaseModel) -> Any:
        """Render a request of this endpoint to the engine's inputs, or an error.

        Raises:
            NoRoomForAnswer
        """
        return await (self.render_chat if endpoint is Endpoint.CHAT else self.render_completion)(request)

    async def render_completion(self, request: BaseModel) -> Any:
        return self._known.get(id(request)) or self._checked(await self._renderer.render_completion(request))

    async def render_chat(self, request: BaseModel) -> Any:
        return self._known.get(id(request)) or self._checked(await self._renderer.render_chat(request))

    def _checked(self, result: Any) -> Any:
        if self._longest is not None and isinstance(result, list | tuple):
            most = max((len(one["prompt_token_ids"]) for one in _inputs(result)), default=0)
            if most >= self._longest:
                raise NoRoomForAnswer(
                    f"This model's maximum context length is {self._longest} tokens. However, your prompt contains "
                    f"{most} input tokens, which leaves no room for an answer. "
                    "Please reduce the length of the input prompt."
                )
        return result


def _inputs(result: Any) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = result[1] if isinstance(result, tuple) else result
    return inputs
