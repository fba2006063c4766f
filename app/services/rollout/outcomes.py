"""Canary outcomes: results of requests to versions in a canary, counted on this node until they are flushed."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from cachetools import FIFOCache

from app.domain.adapters import ResolvedVersion
from app.domain.canary_policy import Figures
from app.domain.errors import AdapterLoadFailed, Busy, EngineUnavailable, row_of
from app.domain.histogram import LatencyHistogram, bucket_of
from app.engine.port import Answer, AnswerEvent, EngineCall, EngineEvent, EventStream, Status
from app.engine.status import EngineState

_PREFIX = "data: "
_DONE = "data: [DONE]"
_ERROR_PREFIX = 'data: {"error"'
_SERVER_FAULT = 500
# Finish reasons of answers that the engine aborted.
_UNFINISHED = (None, "error")
_MAX_SAMPLED = 10_000
# Parameters of all routes that choose tokens, stop an answer, or leave too few tokens for a word.
_STEERING = ("logit_bias", "bad_words", "allowed_token_ids", "response_format", "structured_outputs")
_STOPS = ("stop", "stop_token_ids")
_BUDGETS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
_SMALL_BUDGET = 4


class TrialWindow(NamedTuple):
    """Key of one group of figures.

    Attributes:
        canary_id: id of the canary.
        revision: the alias's revision in the canary's current step.
        version_id: one of the canary's two versions.
        recipient_id: the requesting tenant, if the version is shared with it; None for the owner's own requests.
    """

    canary_id: int
    revision: int
    version_id: int
    recipient_id: int | None = None


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """Properties of a request that a canary's verdict depends on.

    Attributes:
        recipient_id: see :class:`TrialWindow`.
        steered: the caller restricted which tokens may be generated.
        stopped: the caller named stop strings or stop tokens.
        small_budget: the caller allowed fewer tokens than a word may take.
    """

    recipient_id: int | None = None
    steered: bool = False
    stopped: bool = False
    small_budget: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any], recipient_id: int | None) -> Self:
        """Read a body of any route as the caller sent it, before adapter defaults are applied."""
        nested = body.get("parameters")
        fields = {**body, **nested} if isinstance(nested, Mapping) else body
        budgets = [fields.get(name) for name in _BUDGETS]
        return cls(
            recipient_id,
            steered=any(fields.get(name) for name in _STEERING),
            stopped=any(fields.get(name) for name in _STOPS),
            small_budget=any(isinstance(budget, int) and budget <= _SMALL_BUDGET for budget in budgets),
        )

    def explains_empty(self, answer: Mapping[str, Any]) -> bool:
        """Return whether the caller's own parameters can explain an answer, or a last event, without text."""
        ends = [(choice.get("finish_reason"), choice.get("stop_reason")) for choice in answer.get("choices", ())]
        return self.steered or any(
            (self.stopped and stop is not None) or (self.small_budget and finish == "length") for finish, stop in ends
        )


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    errors: int = 0
    empties: int = 0
    ttft: list[int] = field(default_factory=lambda: list(LatencyHistogram().counts))

    def figures(self) -> Figures:
        return Figures(self.requests, self.errors, self.empties, LatencyHistogram(tuple(self.ttft)))


_OWN = RequestTraits()


class Outcomes:
    """Counts the outcomes of requests to versions in a canary.

    Not counted are:

    - errors caused by the caller
    - answers that the caller did not wait for
    - empty answers that the caller's own parameters can explain
    - failures while no engine runs

    A request that waited for its version to load has no time to first token.

    A recipient of a share is one sample: its first answer in a window counts, its times to first token never do. So a
    recipient can neither end nor advance the owner's canary, whatever it requests and however often.
    """

    def __init__(self, engine: Status, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._monotonic = engine, monotonic
        self._tallies: dict[TrialWindow, _Tally] = {}
        #: Only avoids repeated writes of a sample. The registry keeps the first one.
        self._sampled = FIFOCache[TrialWindow, None](_MAX_SAMPLED)
        self._loaded_at: dict[int, float] = {}
        engine.subscribe(self._on_event)

    async def observed(self, version: ResolvedVersion | None, call: EngineCall, traits: RequestTraits = _OWN) -> Answer:
        """Run the call, and count its outcome if the version is in a canary.

        Raises: as :meth:`app.engine.port.EngineCall.answer`.
        """
        if version is None or version.canary_id is None or version.revision is None:
            return await call.answer()
        window = TrialWindow(version.canary_id, version.revision, version.key.version_id, traits.recipient_id)
        started = self._monotonic()
        try:
            answer = await call.answer()
        except Exception as error:
            self._failed(window, error)
            raise
        if not isinstance(answer, dict):
            return _ObservedEvents(answer, self, window, call, started, traits)
        if any(choice.get("finish_reason") in _UNFINISHED for choice in answer.get("choices", ())):
            self.count(window, error=True)
        else:
            self.count_answer(window, call, output=has_output(answer), explained=traits.explains_empty(answer))
        return answer

    def count(self, window: TrialWindow, *, error: bool = False, empty: bool = False) -> None:
        """Count one finished answer. A failure while no engine runs is ignored."""
        if error and self._engine.status().state is not EngineState.READY:
            return
        if window.recipient_id is not None:
            if window in self._sampled:
                return
            self._sampled[window] = None
        tally = self._tallies.setdefault(window, _Tally())
        tally.requests += 1
        tally.errors += error
        tally.empties += empty

    def count_answer(self, window: TrialWindow, call: EngineCall, *, output: bool, explained: bool) -> None:
        """Count an answer that ended without an error.

        Args:
            explained: whether the caller's own parameters can explain missing output.
        """
        finite = call.outcome.finite
        if output or not finite or not explained:
            self.count(window, empty=not output or not finite)

    def first_token(self, window: TrialWindow, started: float) -> None:
        """Record the time to first token of a stream that began at ``started``."""
        if window.recipient_id is not None or self._loaded_at.get(window.version_id, started) > started:
            return
        tally = self._tallies.setdefault(window, _Tally())
        tally.ttft[bucket_of(self._monotonic() - started)] += 1

    def take(self) -> dict[TrialWindow, Figures]:
        """Pop the figures that were counted since the last call."""
        taken = {window: tally.figures() for window, tally in self._tallies.items()}
        self._tallies.clear()
        return taken

    def put_back(self, taken: Mapping[TrialWindow, Figures]) -> None:
        """Return figures that could not be written, so that the next ``take`` includes them."""
        for window, figures in taken.items():
            total = figures + self._tallies.get(window, _Tally()).figures()
            self._tallies[window] = _Tally(total.requests, total.errors, total.empties, list(total.ttft.counts))

    def _failed(self, window: TrialWindow, error: Exception) -> None:
        if isinstance(error, Busy):
            return  # overload is not the version's fault
        row = row_of(error)
        if isinstance(error, AdapterLoadFailed | EngineUnavailable) or row is None or row.status >= _SERVER_FAULT:
            self.count(window, error=True)

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind == "load":
            self._loaded_at[event.version_id] = self._monotonic()
        else:
            self._loaded_at.pop(event.version_id, None)


class _ObservedEvents:
    """Event stream that counts its outcome and passes the events through unchanged."""

    def __init__(
        self,
        source: EventStream[AnswerEvent],
        outcomes: Outcomes,
        window: TrialWindow,
        call: EngineCall,
        started: float,
        traits: RequestTraits,
    ) -> None:
        self._source, self._outcomes, self._window = source, outcomes, window
        self._call, self._started, self._traits = call, started, traits
        self._explained = traits.steered
        self._begun = self._output = self._failed = False
        self._open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        try:
            event = await anext(self._source)
        except StopAsyncIteration:
            self._end()
            raise
        except Exception:
            self._failed = True
            self._end()
            raise
        self._read(event.text)
        return event

    async def aclose(self) -> None:
        self._open = False
        await self._source.aclose()

    def _read(self, event: str) -> None:
        if event.startswith(_DONE):
            # Some clients disconnect before the stream has ended.
            self._end()
            return
        if event.startswith(_ERROR_PREFIX):
            self._failed = True
        # Once there is output, the rest of the answer cannot change the outcome.
        if self._output or self._failed:
            return
        chunk = json.loads(event.removeprefix(_PREFIX))
        if not self._begun and has_output(chunk, blank=True):
            self._begun = True
            self._outcomes.first_token(self._window, self._started)
        self._output = has_output(chunk)
        self._explained = self._explained or self._traits.explains_empty(chunk)

    def _end(self) -> None:
        if self._open:
            self._open = False
            if self._failed:
                self._outcomes.count(self._window, error=True)
                return
            self._outcomes.count_answer(self._window, self._call, output=self._output, explained=self._explained)


def has_output(answer: Mapping[str, Any], *, blank: bool = False) -> bool:
    """Return whether an OpenAI answer, or one event of it, holds a text or a tool call.

    Args:
        blank: whether a text of spaces and line breaks counts.
    """
    for choice in answer.get("choices", ()):
        part = choice.get("delta") or choice.get("message") or choice
        texts = [part.get(name) or "" for name in ("text", "content", "reasoning", "reasoning_content")]
        if part.get("tool_calls") or any(text if blank else text.strip() for text in texts):
            return True
    return False
