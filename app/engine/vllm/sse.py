"""vLLM's answers as clients may see them."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import BaseModel

from app.domain.errors import ROWS, TenoraError
from app.engine.vllm.translation import Asked
from app.observability.context import note_error

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


def prompt_count(body: dict[str, Any]) -> int:
    """How many prompts a completions body has: one text, one list of token ids, or a list of either."""
    return len(body["prompt"]) if has_many_prompts(body) else 1


def has_many_prompts(body: dict[str, Any]) -> bool:
    """Whether its prompt is a list of prompts."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def token_counts(body: dict[str, Any]) -> list[int] | None:
    """Tokens of each prompt, where all are token ids and none is cut; None: only who renders them can count them."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or "truncate_prompt_tokens" in body:
        return None
    if isinstance(prompt[0], int):
        return [len(prompt)]
    return [len(one) for one in prompt] if all(isinstance(one, list) for one in prompt) else None


def most_output(body: dict[str, Any], counts: list[int], *, default: int | None, longest: int) -> int:
    """Tokens of all sequences of a body together, at most.

    Args:
        counts: tokens of each prompt.
        default: of a sequence that says nothing of its length; None: as many as there is room for.
        longest: tokens of a prompt and its sequence together.
    """
    asked = body.get("max_completion_tokens") or body.get("max_tokens", default)
    rooms = [max(0, longest - count) for count in counts]
    return int(body.get("n") or 1) * sum(room if asked is None else min(asked, room) for room in rooms)


def sequence_count(body: dict[str, Any]) -> int:
    """How many sequences the engine makes for a body: ``n`` for each of its prompts."""
    return prompt_count(body) * int(body.get("n") or 1)


def error_event(error: TenoraError) -> str:
    """An error in the middle of a stream, in the envelope of the OpenAI routes."""
    row = ROWS[type(error)]
    note_error(row.code)
    body = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    return f"data: {json.dumps({'error': body})}\n\n"


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
