"""vLLM's answers as clients may see them."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel

from app.engine.error_event import error_event
from app.engine.vllm.translation import Asked

_NULLABLE_OF_CHOICE = dict.fromkeys(("logprobs", "finish_reason"))
_NULLABLE_OF_MESSAGE = dict.fromkeys(("content", "refusal"))
#: Fields that are null in OpenAI's answers too.
NULLABLE = frozenset({*_NULLABLE_OF_CHOICE, *_NULLABLE_OF_MESSAGE})
_ERROR_PREFIX = 'data: {"error"'


class Events:
    """Server-sent events of one answer, each with the public model name.

    vLLM checks part of a request only when its stream is first read, so :meth:`begin` reads the first
    event: an error there is raised, and becomes a status instead of a stream.
    """

    def __init__(self, source: AsyncGenerator[str, None], first: str | None, asked: Asked) -> None:
        self._source = source
        self._first = first
        self._asked = asked
        # A quote inside a JSON string is escaped, so this text is only ever the key and its value.
        self._old = f'"model":{json.dumps(asked.engine_name)}'
        self._new = f'"model":{json.dumps(asked.public_name)}'

    @classmethod
    async def begin(cls, source: AsyncGenerator[str, None], asked: Asked) -> "Events":
        """Read the first event and return the stream that begins with it.

        Raises:
            InvalidRequest, EngineUnavailable: the first event is an error.
        """
        first = await anext(source, None)
        if first is not None and first.startswith(_ERROR_PREFIX):
            await source.aclose()
            raise asked.error(_error_of(first))
        return cls(source, first, asked)

    async def next(self) -> str | None:
        """The next event, or None at the end."""
        event, self._first = self._first, None
        if event is None:
            # anext() with a default would go through a slower kind of awaitable.
            try:
                event = await self._source.__anext__()
            except StopAsyncIteration:
                return None
        if event.startswith(_ERROR_PREFIX):
            return error_event(self._asked.error(_error_of(event)))
        return event.replace(self._old, self._new, 1)

    async def aclose(self) -> None:
        await self._source.aclose()


def without_nulls(answer: BaseModel) -> dict[str, Any]:
    """A whole answer as JSON values, without the fields that are null and that OpenAI's answers do not have.

    A client that sends a message back sends all of its fields back, and some refuse a null where they know no field.
    """
    whole = answer.model_dump(exclude_none=True)
    for choice in whole["choices"]:
        choice |= _NULLABLE_OF_CHOICE | choice
        if "message" in choice:
            choice["message"] = _NULLABLE_OF_MESSAGE | choice["message"]
    return whole


def without_nan(value: Any) -> Any:
    """A JSON value with null for what JSON has no word for."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _error_of(event: str) -> dict[str, Any]:
    error = json.loads(event.removeprefix("data: "))["error"]
    return error if isinstance(error, dict) else {}


def raise_if_cancelled() -> None:
    """vLLM turns a cancelled request into an answer; whoever cancelled it wants it to end."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError
