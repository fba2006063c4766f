"""Answers of OpenAI's Responses, translated from chats: whole answers, and streams of OpenAI's event types.

The events of one answer, in order::

    response.created, response.in_progress
    for a text:  response.output_item.added, response.content_part.added, response.output_text.delta ...,
                 response.output_text.done, response.content_part.done, response.output_item.done
    for a call:  response.output_item.added, response.function_call_arguments.delta ...,
                 response.function_call_arguments.done, response.output_item.done
    response.completed, response.incomplete, or error and response.failed
"""

import itertools
import time
from collections.abc import Iterator
from typing import Any

from app.engine.port import TokenUsage
from app.services.bodies.translated_events import ABORTED, AnswerFacts, call_deltas, choice_of, server_sent

_INCOMPLETE = {"reason": "max_output_tokens"}
#: OpenAI's codes of failed responses, by the type of the error.
_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}


def whole_response(shown: dict[str, Any], answer: dict[str, Any], facts: AnswerFacts) -> dict[str, Any]:
    """Build a ``Response`` from a whole chat answer.

    Args:
        shown: fields of the request that the answer repeats.
    """
    choice = answer["choices"][0]
    message, cut_off = choice["message"], choice["finish_reason"] == "length"
    calls = message.get("tool_calls") or []
    output: list[_Text | _Call] = []
    if message.get("content") or not calls:
        item = _Text(_item_id("msg", facts, 0))
        item.text = message.get("content") or ""
        item.logprobs = _logprobs(choice)
        output.append(item)
    output += [_Call.of(call, _item_id("fc", facts, len(output) + place)) for place, call in enumerate(calls)]
    items = [item.shown("completed") for item in output[:-1]]
    items.append(output[-1].shown("incomplete" if cut_off else "completed"))
    return _response(shown, facts, items, cut_off=cut_off, usage=facts.tokens(answer.get("usage")))


class ResponseEvents:
    """State machine of one stream; see :class:`app.services.bodies.translated_events.EventWriter`."""

    def __init__(self, shown: dict[str, Any], facts: AnswerFacts) -> None:
        self._shown, self._facts = shown, facts
        self._numbers = itertools.count()
        self._begun = False
        self._items: list[_Text | _Call] = []
        self._open: _Text | _Call | None = None
        self._call_index: int | None = None
        self._done: list[dict[str, Any]] = []
        self._usage: dict[str, Any] | None = None
        self._reason: str | None = None

    @property
    def complete(self) -> bool:
        return self._reason not in ABORTED

    def chunk(self, chunk: dict[str, Any]) -> Iterator[str]:
        yield from self._begin()
        self._usage = chunk.get("usage") or self._usage
        if (choice := choice_of(chunk)) is None:
            return
        delta = choice.get("delta") or {}
        if delta.get("content"):
            yield from self._text(delta["content"], _logprobs(choice))
        for index, part, function in call_deltas(delta):
            yield from self._called(index, part, function)
        self._reason = choice.get("finish_reason") or self._reason

    def end(self) -> Iterator[str]:
        cut_off = self._reason == "length"
        if not self._items:
            yield from self._open_text()
        yield from self._close("incomplete" if cut_off else "completed")
        usage = self._facts.tokens(self._usage)
        response = _response(self._shown, self._facts, self._done, cut_off=cut_off, usage=usage)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: dict[str, Any]) -> Iterator[str]:
        yield from self._begin()
        yield self._event("error", code=error.get("code"), message=error.get("message"), param=error.get("param"))
        open_item = [self._open.shown("incomplete")] if self._open else []
        reason = {"code": _CODES.get(str(error.get("type")), "server_error"), "message": error.get("message")}
        output = [*self._done, *open_item]
        response = _unfinished(self._shown, self._facts, "failed") | {"output": output, "error": reason}
        yield self._event("response.failed", response=response)

    def _begin(self) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            response = _unfinished(self._shown, self._facts, "in_progress")
            yield self._event("response.created", response=response)
            yield self._event("response.in_progress", response=response)

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[str]:
        if not isinstance(self._open, _Text):
            yield from self._open_text()
        item = self._open
        if isinstance(item, _Text):
            item.text += text
            item.logprobs += logprobs
            yield self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _open_text(self) -> Iterator[str]:
        yield from self._add(_Text(self._new_id("msg")))
        yield self._of_item("response.content_part.added", content_index=0, part=_part("", []))

    def _called(self, index: int, part: dict[str, Any], function: dict[str, Any]) -> Iterator[str]:
        if not isinstance(self._open, _Call) or self._call_index != index:
            call = {"id": part.get("id", ""), "function": {"name": function.get("name", ""), "arguments": ""}}
            yield from self._add(_Call.of(call, self._new_id("fc")))
            self._call_index = index
        if isinstance(self._open, _Call) and (arguments := function.get("arguments")):
            self._open.arguments += arguments
            yield self._of_item("response.function_call_arguments.delta", delta=arguments)

    def _add(self, item: "_Text | _Call") -> Iterator[str]:
        yield from self._close("completed")
        self._items.append(item)
        self._open = item
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=item.started())

    def _close(self, status: str) -> Iterator[str]:
        item = self._open
        if item is None:
            return
        if isinstance(item, _Text):
            logprobs = item.logprobs
            yield self._of_item("response.output_text.done", content_index=0, text=item.text, logprobs=logprobs)
            yield self._of_item("response.content_part.done", content_index=0, part=_part(item.text, logprobs))
        else:
            yield self._of_item("response.function_call_arguments.done", arguments=item.arguments, name=item.name)
        self._open = None
        self._done.append(item.shown(status))
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._done[-1])

    def _new_id(self, kind: str) -> str:
        return _item_id(kind, self._facts, len(self._items))

    def _of_item(self, kind: str, **fields: Any) -> str:
        """Build an event of the newest item."""
        return self._event(kind, item_id=self._items[-1].id, output_index=len(self._items) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        return server_sent(kind, {"type": kind, "sequence_number": next(self._numbers), **fields})


class _Text:
    """Output item of a text."""

    def __init__(self, item_id: str) -> None:
        self.id, self.text = item_id, ""
        self.logprobs: list[dict[str, Any]] = []

    def started(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def shown(self, status: str) -> dict[str, Any]:
        return self.started() | {"status": status, "content": [_part(self.text, self.logprobs)]}


class _Call:
    """Output item of a function call."""

    def __init__(self, item_id: str, call_id: str, name: str, arguments: str) -> None:
        self.id, self.call_id, self.name, self.arguments = item_id, call_id, name, arguments

    @classmethod
    def of(cls, call: dict[str, Any], item_id: str) -> "_Call":
        function = call["function"]
        return cls(item_id, call["id"], function["name"], function["arguments"])

    def started(self) -> dict[str, Any]:
        return self.shown("in_progress") | {"arguments": ""}

    def shown(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _item_id(kind: str, facts: AnswerFacts, place: int) -> str:
    return f"{kind}_{facts.request_id}_{place}"


def _logprobs(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"token": token["token"], "bytes": token.get("bytes") or [], "logprob": token["logprob"]}
        | {"top_logprobs": [{"bytes": [], **top} for top in token.get("top_logprobs") or ()]}
        for token in (choice.get("logprobs") or {}).get("content") or ()
    ]


def _response(
    shown: dict[str, Any], facts: AnswerFacts, output: list[dict[str, Any]], *, cut_off: bool, usage: TokenUsage
) -> dict[str, Any]:
    """Build the object of an ended answer."""
    ended = {
        "output": output,
        "incomplete_details": _INCOMPLETE if cut_off else None,
        "completed_at": None if cut_off else int(time.time()),
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        },
    }
    return _unfinished(shown, facts, "incomplete" if cut_off else "completed") | ended


def _unfinished(shown: dict[str, Any], facts: AnswerFacts, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{facts.request_id}",
        "object": "response",
        "created_at": facts.created,
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": facts.model,
        "output": [],
        **shown,
        "usage": None,
    }
