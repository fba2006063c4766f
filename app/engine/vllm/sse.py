"""Conversion of vLLM's answers and stream events for clients."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel

from app.engine.error_event import error_event
from app.engine.vllm.translation import VllmRequest

_NULLABLE_OF_CHOICE = dict.fromkeys(("logprobs", "finish_reason"))
_NULLABLE_OF_MESSAGE = dict.fromkeys(("content", "refusal"))
#: Fields that may be null in OpenAI's answers too.
NULLABLE = frozenset({*_NULLABLE_OF_CHOICE, *_NULLABLE_OF_MESSAGE})
_ERROR_PREFIX = 'data: {"error"'


class Events:
    """Server-sent events of one answer, with the public model name.

    vLLM checks part of a request only when its stream is first read. Therefore :meth:`begin` reads the first event. An
    error there is raised, and becomes an HTTP status instead of a stream.
    """

    def __init__(self, source: AsyncGenerator[str, None], first: str | None, vllm_request: VllmRequest) -> None:
        self._source = source
        self._first = first
        self._vllm_request = vllm_request
        # Quotes inside JSON strings are escaped, so this text can only be the key and its value.
        self._old = f'"model":{json.dumps(vllm_request.engine_name)}'
        self._new = f'"model":{json.dumps(vllm_request.public_name)}'

    @classmethod
    async def begin(cls, source: AsyncGenerator[str, None], vllm_request: VllmRequest) -> "Events":
        """Read the first event, and return the stream including that event.

        Raises:
            InvalidRequest, EngineUnavailable: the first event is an error.
        """
        first = await anext(source, None)
        if first is not None and first.startswith(_ERROR_PREFIX):
            await source.aclose()
            raise vllm_request.error(_error_of(first))
        return cls(source, first, vllm_request)

    async def next(self) -> str | None:
        """Return the next event, or None at the end."""
        event, self._first = self._first, None
        if event is None:
            # anext() with a default uses a slower kind of awaitable.
            try:
                event = await self._source.__anext__()
            except StopAsyncIteration:
                return None
        if event.startswith(_ERROR_PREFIX):
            return error_event(self._vllm_request.error(_error_of(event)))
        return event.replace(self._old, self._new, 1)

    async def aclose(self) -> None:
        await self._source.aclose()


def without_nulls(answer: BaseModel) -> dict[str, Any]:
    """Convert a whole answer to JSON values, without null fields that OpenAI's answers do not have.

    A client that sends a message back sends all of its fields. Some reject a null in a field that they do not know.
    """
    whole = answer.model_dump(exclude_none=True)
    for choice in whole["choices"]:
        choice |= _NULLABLE_OF_CHOICE | choice
        if "message" in choice:
            choice["message"] = _NULLABLE_OF_MESSAGE | choice["message"]
    return whole


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity in a JSON value by null."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error_of(event: str) -> dict[str, Any]:
    error = json.loads(event.removeprefix("data: "))["error"]
    return error if isinstance(error, dict) else {}


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task is being cancelled. vLLM turns a cancelled request into an answer."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
