"""Prompts as vLLM runs them: what was rendered to be counted for limits is run as it is, not rendered again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from app.engine.port import Endpoint


class NoRoomForAnswer(ValueError):
    """A prompt of as many tokens as the context has; vLLM itself refuses it later, without naming the cause."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request whose prompts are tokens.

    Attributes:
        body: vLLM's own request; rendering may have changed it, so that it belongs to what came of it.
        result: what its renderer gave: the engine's inputs, for a chat with the conversation before them.
    """

    body: BaseModel
    result: Any

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Of the engine, one for each prompt."""
        return _inputs(self.result)

    @property
    def counts(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(one["prompt_token_ids"]) for one in self.inputs]


class RenderedOnce:
    """vLLM's renderer, which gives again what it has given for the same request; all else is as it was."""

    """
    Args:
        longest: tokens of a prompt and its answer together; None: nothing is known of that.
    """

    def __init__(self, renderer: Any, *, longest: int | None = None) -> None:
        self._renderer, self._longest = renderer, longest
        self._known: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    @contextmanager
    def knowing(self, rendered: Rendered | None) -> Iterator[None]:
        """Give this whenever its request is to be rendered in this context."""
        if rendered is None:
            yield
            return
        for one in rendered.inputs:
            # To the engine it comes now: what it waited for before is not the engine's time.
            one["arrival_time"] = time.time()
        self._known[id(rendered.body)] = rendered.result
        try:
            yield
        finally:
            del self._known[id(rendered.body)]

    async def render(self, endpoint: Endpoint, request: BaseModel) -> Any:
        """What this endpoint renders a request to: the engine's inputs, or an error.

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
