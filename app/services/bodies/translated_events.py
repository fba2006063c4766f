"""Event streams of chats, translated to the events of another API."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pydantic_core import to_json

from app.domain.errors import TenoraError, row_of
from app.engine.port import EventStream, TokenUsage
from app.services.bodies.renaming import Renaming

_PREFIX = "data: "
_DONE = "[DONE]"
_STOPPED = "The engine stopped while it answered. Try again later."
_INCOMPLETE = {"message": _STOPPED, "type": "service_unavailable_error", "param": None, "code": "engine_unavailable"}
#: Finish reasons of answers that the engine aborted.
ABORTED = (None, "error", "abort")


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about a request that its chat answer does not have.

    Attributes:
        request_id: the server's id of the request.
        model: model name as the client wrote it.
        created: Unix time in seconds.
        prompt_tokens: tokens of the prompt; None if only the engine knows them.
        usage: returns the recorded usage; None until the answer has ended.
    """

    request_id: str
    model: str
    created: int
    prompt_tokens: int | None
    usage: Callable[[], TokenUsage | None]

    def tokens(self, chat_usage: dict[str, Any] | None) -> TokenUsage:
        """Return the usage of an ended answer: the recorded one, else that of the chat answer."""
        if (recorded := self.usage()) is not None:
            return recorded
        chat_usage = chat_usage or {}
        prompt = chat_usage.get("prompt_tokens", self.prompt_tokens or 0)
        return TokenUsage(prompt, 0, chat_usage.get("completion_tokens", 0), ttft_s=None)


class EventWriter(Protocol):
    """State machine that turns the chunks of one chat stream into another API's server-sent events."""

    def chunk(self, chunk: dict[str, Any]) -> Iterable[str]:
        """Translate one chunk."""

    def end(self) -> Iterable[str]:
        """Return the last events of a complete answer. Its usage is final now."""

    def failed(self, error: dict[str, Any]) -> Iterable[str]:
        """Return the last events of an answer that an error ends.

        Args:
            error: content of OpenAI's error envelope.
        """

    @property
    def complete(self) -> bool:
        """True once a chunk had a finish reason of a complete answer."""


class TranslatedRequest(Protocol):
    """Request of another API, translated to a chat.

    Attributes:
        chat: checked chat body for the engine.
        ignored: names of ignored fields, possibly repeated.
        renaming: the API's names for the fields of chats.
    """

    @property
    def chat(self) -> dict[str, Any]: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def renaming(self) -> Renaming: ...

    def whole(self, answer: dict[str, Any], facts: AnswerFacts) -> dict[str, Any]:
        """Translate a whole chat answer."""

    def writer(self, facts: AnswerFacts) -> EventWriter:
        """Return the translator of a chat stream."""


class TranslatedEvents:
    """Translated event stream. The source is read to its end, which releases the adapter."""

    def __init__(self, source: EventStream[str], writer: EventWriter, renaming: Renaming) -> None:
        self._source, self._writer, self._renaming = source, writer, renaming
        self._pending = deque[str]()
        self._ended = self._exhausted = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._pending:
            if self._exhausted:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def aclose(self) -> None:
        self._exhausted = True
        self._pending.clear()
        await self._source.aclose()

    def last_event(self, error: TenoraError) -> str:
        """Return the last events of a stream that an error of the server ends, as one text."""
        if self._ended:
            return ""
        row = row_of(error)
        kind, code = (row.type, row.code) if row else ("server_error", "internal_error")
        self._fail({"message": error.message, "type": kind, "param": error.param, "code": code})
        events = "".join(self._pending)
        self._pending.clear()
        return events

    async def _read(self) -> None:
        event = await anext(self._source, None)
        if event is None:
            self._exhausted = True
            self._fail(_INCOMPLETE)
            return
        data = event.removeprefix(_PREFIX).strip()
        if self._ended:
            return
        if data == _DONE:
            self._end()
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self._fail(chunk["error"])
        else:
            self._pending.extend(self._writer.chunk(chunk))

    def _end(self) -> None:
        if not self._writer.complete:
            self._fail(_INCOMPLETE)
            return
        self._ended = True
        self._pending.extend(self._writer.end())

    def _fail(self, error: dict[str, Any]) -> None:
        if self._ended:
            return
        self._ended = True
        renamed = {
            "message": self._renaming.text(str(error.get("message"))),
            "param": self._renaming.param(error.get("param")),
        }
        self._pending.extend(self._writer.failed({**error, **renamed}))


def server_sent(name: str, data: dict[str, Any]) -> str:
    """Format a named server-sent event. A number that is not finite becomes null."""
    return f"event: {name}\ndata: {to_json(data, inf_nan_mode='null').decode()}\n\n"


def choice_of(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """Return the only choice of a chunk; None for a chunk that has the usage only."""
    choices: list[dict[str, Any]] = chunk.get("choices") or []
    return choices[0] if choices else None


def call_deltas(delta: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Return the parts of tool calls in a delta: the call's index, the part, and its function."""
    for part in delta.get("tool_calls") or ():
        yield part.get("index", 0), part, part.get("function") or {}
