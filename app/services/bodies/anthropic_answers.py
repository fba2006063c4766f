"""Answers of Anthropic's Messages, translated from chats: whole answers, and streams of Anthropic's events.

The events of one answer, in order::

    message_start
    for each block:  content_block_start, content_block_delta ..., content_block_stop
    message_delta, message_stop; or error
"""

import json
from collections.abc import Iterator
from typing import Any

from app.engine.port import TokenUsage
from app.services.bodies.translated_events import ABORTED, AnswerFacts, call_deltas, choice_of, server_sent

#: Anthropic's error types by HTTP status. The other client errors are invalid requests.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
#: Anthropic's error types by the type of OpenAI's envelope, for errors inside a stream.
_TYPES_IN_STREAMS = {
    "authentication_error": "authentication_error",
    "permission_error": "permission_error",
    "invalid_request_error": "invalid_request_error",
    "rate_limit_error": "rate_limit_error",
    "service_unavailable_error": "overloaded_error",
}


def error_type(status: int) -> str:
    """Return Anthropic's type of an error with an HTTP status."""
    return _TYPES.get(status, "invalid_request_error")


def error_body(kind: str, message: str) -> dict[str, Any]:
    """Build Anthropic's error envelope. The request's id is in a header only, so equal refusals have equal bodies."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def whole_message(stops: tuple[str, ...], answer: dict[str, Any], facts: AnswerFacts) -> dict[str, Any]:
    """Build a ``Message`` from a whole chat answer.

    Args:
        stops: stop sequences of the request.
    """
    choice = answer["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    blocks: list[dict[str, Any]] = []
    if message.get("content") or not calls:
        blocks.append({"type": "text", "text": message.get("content") or ""})
    blocks += [_tool_use(call["id"], call["function"]["name"], _input(call["function"]["arguments"])) for call in calls]
    reason = _stop_reason(choice["finish_reason"], choice.get("stop_reason"), stops, called=bool(calls))
    usage = _usage(facts.tokens(answer.get("usage")))
    return _message(facts) | {"content": blocks, "usage": usage} | reason


class MessageEvents:
    """State machine of one stream; see :class:`app.services.bodies.translated_events.EventWriter`."""

    def __init__(self, stops: tuple[str, ...], facts: AnswerFacts) -> None:
        self._stops, self._facts = stops, facts
        self._begun = self._called = False
        self._blocks = 0
        self._open: str | int | None = None
        self._usage: dict[str, Any] | None = None
        self._reason: str | None = None
        self._stop: Any = None

    @property
    def complete(self) -> bool:
        return self._reason not in ABORTED

    def chunk(self, chunk: dict[str, Any]) -> Iterator[str]:
        self._usage = chunk.get("usage") or self._usage
        if not self._begun:
            self._begun = True
            yield _event("message_start", message=_message(self._facts) | {"usage": self._first_usage()})
        if (choice := choice_of(chunk)) is None:
            return
        delta = choice.get("delta") or {}
        if text := delta.get("content"):
            yield from self._begin_text()
            yield self._delta({"type": "text_delta", "text": text})
        for index, part, function in call_deltas(delta):
            yield from self._call(index, part, function)
        if choice.get("finish_reason"):
            self._reason, self._stop = choice["finish_reason"], choice.get("stop_reason")

    def end(self) -> Iterator[str]:
        if not self._blocks:
            yield from self._begin_text()
        yield from self._close()
        reason = _stop_reason(self._reason, self._stop, self._stops, called=self._called)
        yield _event("message_delta", delta=reason, usage=_usage(self._facts.tokens(self._usage)))
        yield _event("message_stop")

    def failed(self, error: dict[str, Any]) -> Iterator[str]:
        kind = _TYPES_IN_STREAMS.get(str(error.get("type")), "api_error")
        yield server_sent("error", error_body(kind, str(error.get("message"))))

    def _first_usage(self) -> dict[str, Any]:
        """Return the usage before the first token. What the cache held is known at the end only."""
        known = self._facts.prompt_tokens or (self._usage or {}).get("prompt_tokens", 0)
        return _usage(TokenUsage(known, 0, 0, ttft_s=None))

    def _begin_text(self) -> Iterator[str]:
        if self._open != "text":
            yield from self._begin("text", {"type": "text", "text": ""})

    def _call(self, index: int, part: dict[str, Any], function: dict[str, Any]) -> Iterator[str]:
        self._called = True
        if self._open != index:
            yield from self._begin(index, _tool_use(part.get("id", ""), function.get("name", ""), {}))
        if arguments := function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, name: str | int, block: dict[str, Any]) -> Iterator[str]:
        yield from self._close()
        self._open = name
        self._blocks += 1
        yield _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **fields: Any) -> str:
    return server_sent(kind, {"type": kind, **fields})


def _message(facts: AnswerFacts) -> dict[str, Any]:
    return {
        "id": f"msg_{facts.request_id}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _tool_use(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _input(arguments: str) -> dict[str, Any]:
    """Parse the arguments of a call. Arguments that were cut off become an empty object, as in a chat's history."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _stop_reason(finish: str | None, stop: Any, stops: tuple[str, ...], *, called: bool) -> dict[str, Any]:
    """Translate a finish reason. A stop string of the version's defaults is an ordinary end for the client."""
    if finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if called:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(stop, str) and stop in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    """Build Anthropic's usage, in which tokens from the cache are not part of ``input_tokens``."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
