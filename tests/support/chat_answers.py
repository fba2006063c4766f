"""Chat answers as the engine gives them, whole and as events, and facts about their requests."""

import json
from collections.abc import Iterable
from typing import Any

from app.engine.port import AnswerEvent, TokenUsage
from app.services.bodies.translated_events import AnswerFacts

USAGE = TokenUsage(prompt_tokens=12, cached_tokens=4, output_tokens=3, ttft_s=0.1)
FACTS = AnswerFacts("0f", "pricing", 1_700_000_000, 12, lambda: USAGE)


def answer(text: str | None = "", *calls: tuple[str, str, str], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """Build a whole chat answer. A call is its id, name and arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, **more}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return {"id": "chatcmpl-0f", "object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}


def chunk(delta: dict[str, Any], *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return {"id": "chatcmpl-0f", "object": "chat.completion.chunk", "created": 1, "choices": [choice]}


def text_chunks(*texts: str, finish: str = "stop", **more: Any) -> list[dict[str, Any]]:
    """Build the chunks of a text, as vLLM sends them: the role, the texts, the finish reason, the usage."""
    chunks = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts)]
    return [*chunks, chunk({"content": ""}, finish=finish, **more), usage_chunk()]


def call_chunks(*calls: tuple[str, str, list[str]], finish: str = "tool_calls") -> list[dict[str, Any]]:
    """Build the chunks of tool calls. A call is its id, name and pieces of arguments."""
    chunks = [chunk({"role": "assistant", "content": ""})]
    for index, (call_id, name, pieces) in enumerate(calls):
        head = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        chunks.append(chunk({"tool_calls": [head]}))
        chunks += [chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in pieces]
    return [*chunks, chunk({}, finish=finish), usage_chunk()]


def usage_chunk() -> dict[str, Any]:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return {"id": "chatcmpl-0f", "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": usage}


def error_chunk(kind: str = "service_unavailable_error", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": "The engine stopped.", "type": kind, "param": param, "code": "engine_unavailable"}}


class ChatStream:
    """Event stream of a chat. It records that it was closed.

    Args:
        done: whether ``[DONE]`` ends it.
    """

    def __init__(self, chunks: Iterable[dict[str, Any]], *, done: bool = True) -> None:
        texts = [f"data: {json.dumps(one, separators=(',', ':'))}\n\n" for one in chunks]
        self._events = iter([*texts, *(["data: [DONE]\n\n"] if done else [])])
        self.closed = False
        self.exhausted = False

    def __aiter__(self) -> "ChatStream":
        return self

    async def __anext__(self) -> str:
        if self.closed:
            raise StopAsyncIteration
        try:
            return next(self._events)
        except StopIteration:
            self.exhausted = True
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.closed = True


class EngineStream:
    """The same as the engine's port gives it: each event with its number of tokens."""

    def __init__(self, chunks: Iterable[dict[str, Any]]) -> None:
        self._stream = ChatStream(chunks)

    def __aiter__(self) -> "EngineStream":
        return self

    async def __anext__(self) -> AnswerEvent:
        text = await anext(self._stream)
        return AnswerEvent(text, 1 if '"content":"' in text else 0)

    async def aclose(self) -> None:
        await self._stream.aclose()


def parsed(events: Iterable[str]) -> list[dict[str, Any]]:
    """Parse named server-sent events. Each name equals the type in its data."""
    found = []
    for block in "".join(events).split("\n\n")[:-1]:
        name, data = (line.partition(": ")[2] for line in block.split("\n"))
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found
