"""Outcomes of requests: errors, empty answers, uncounted requests, and time to first token."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest

from adapters.errors import StoreUnavailable
from adapters.identity import VersionKey
from app.domain.adapters import ResolvedVersion
from app.domain.canary_policy import Figures
from app.domain.errors import AdapterLoadFailed, EngineUnavailable, InvalidRequest
from app.engine.port import Answer, AnswerEvent, Endpoint, EngineEvent, EngineRequest, EventStream
from app.engine.status import EngineState
from app.services.rollout.outcomes import Outcomes, RequestTraits, TrialWindow, has_output
from tests.support.registry import SettableClock
from tests.support.serving import NoEngine

WINDOW = TrialWindow(canary_id=3, revision=17, version_id=8)
OTHERS = WINDOW._replace(recipient_id=77)
KEY = VersionKey(8, "c" * 64, "d" * 64, 10, 20)
DONE = "data: [DONE]\n\n"
OWN = RequestTraits()


def version(canary_id: int | None = 3) -> ResolvedVersion:
    return ResolvedVersion(
        key=KEY,
        adapter="prices",
        number=2,
        owner="pricing",
        alias="stable",
        revision=17,
        canary_id=canary_id,
        defaults={},
    )


class Place:
    """A ready engine, its outcome counters and a settable clock."""

    def __init__(self) -> None:
        self.engine = NoEngine()
        self.engine.state = EngineState.READY
        self.clock = SettableClock()
        self.outcomes = Outcomes(self.engine, monotonic=self.clock.monotonic)

    async def observed(
        self, outcome: Answer | Exception, *, canary_id: int | None = 3, traits: RequestTraits = OWN
    ) -> Answer:
        async def answer(_request: EngineRequest) -> Answer:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.engine.answer = answer  # type: ignore[method-assign]
        request = EngineRequest("id", Endpoint.COMPLETIONS, {}, "prices", KEY, "salt")
        return await self.outcomes.observed(version(canary_id), self.engine.begin(request), traits)

    async def streamed(self, *events: str | Exception | float, traits: RequestTraits = OWN) -> list[str]:
        """Read a stream to its end. A number among the events is a pause in seconds."""
        stream = await self.observed(Stream(events, self.clock), traits=traits)
        assert not isinstance(stream, dict)
        return [event.text async for event in stream]

    def counted(self) -> Figures:
        taken = self.outcomes.take()
        assert set(taken) <= {WINDOW, OTHERS}
        return taken.get(WINDOW, Figures()) + taken.get(OTHERS, Figures())


class Stream:
    """Stream of prepared events."""

    def __init__(self, events: Sequence[str | Exception | float], clock: SettableClock) -> None:
        self._events, self._clock = iter(events), clock
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        for event in self._events:
            if isinstance(event, float):
                self._clock.advance(event)
            elif isinstance(event, Exception):
                raise event
            else:
                return AnswerEvent(event, 1)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def place() -> Place:
    return Place()


def event(**choice: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n"


def whole(finish_reason: str | None = "stop", **choice: Any) -> Answer:
    return {"choices": [{"index": 0, "finish_reason": finish_reason, **choice}]}


def read(figures: Figures) -> tuple[int, int, int, int]:
    return figures.requests, figures.errors, figures.empties, figures.ttft.total


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (whole(text="sugar"), (1, 0, 0, 0)),
        (whole("length", text="s"), (1, 0, 0, 0)),
        (whole(text=""), (1, 0, 1, 0)),
        (whole(text=" \n"), (1, 0, 1, 0)),
        (whole(message={"content": "sugar"}), (1, 0, 0, 0)),
        (whole(message={"content": None}), (1, 0, 1, 0)),
        (whole("tool_calls", message={"content": None, "tool_calls": [{"id": "x"}]}), (1, 0, 0, 0)),
        (whole(message={"content": "", "reasoning": "hm"}), (1, 0, 0, 0)),
        (whole(None, text="sug"), (1, 1, 0, 0)),
        (whole("error", text=""), (1, 1, 0, 0)),
    ],
)
async def test_whole_answers(place: Place, answer: Answer, counts: tuple[int, ...]) -> None:
    assert await place.observed(answer) == answer
    assert read(place.counted()) == counts
    assert read(place.counted()) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (InvalidRequest("max_tokens: found -1"), False),
        (AdapterLoadFailed("it does not load", version_id=8), True),
        (StoreUnavailable("no answer"), True),
        (EngineUnavailable("The engine stopped while it answered. Try again later."), True),
        (RuntimeError("unforeseen"), True),
    ],
)
async def test_failures_that_are_the_callers_fault_do_not_count(place: Place, error: Exception, counted: bool) -> None:
    with pytest.raises(type(error)):
        await place.observed(error)
    assert read(place.counted()) == (int(counted), int(counted), 0, 0)


async def test_a_dead_engine_is_nobodys_fault(place: Place) -> None:
    place.engine.state = EngineState.RESTARTING
    with pytest.raises(EngineUnavailable):
        await place.observed(EngineUnavailable("the engine is being started again"))
    await place.streamed(event(text="a"), 'data: {"error": {"code": "engine_unavailable"}}\n\n', DONE)
    assert read(place.counted())[:3] == (0, 0, 0)


async def test_numbers_that_are_not_finite_count_as_empty(place: Place) -> None:
    place.engine.not_finite.add("id")
    await place.observed(whole(text="!!!"))
    await place.streamed(event(text="!!!"), DONE)
    assert read(place.counted()) == (2, 0, 2, 1)


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ((event(text="a"), event(text="b", finish_reason="stop"), DONE), (1, 0, 0, 1)),
        ((event(text="", finish_reason="stop"), DONE), (1, 0, 1, 0)),
        ((DONE,), (1, 0, 1, 0)),
        ((), (1, 0, 1, 0)),
        ((event(text=" "), event(text="\n", finish_reason="length"), DONE), (1, 0, 1, 1)),
        ((event(delta={"role": "assistant", "content": ""}), event(delta={"content": "a"}), DONE), (1, 0, 0, 1)),
        ((event(delta={"tool_calls": [{"index": 0}]}), DONE), (1, 0, 0, 1)),
        (('data: {"choices": []}\n\n', event(text="a"), DONE), (1, 0, 0, 1)),
        ((event(text="a"), 'data: {"error": {"message": "stopped"}}\n\n', DONE), (1, 1, 0, 1)),
    ],
)
async def test_streams(place: Place, events: tuple[str, ...], counts: tuple[int, ...]) -> None:
    assert await place.streamed(*events) == list(events)
    assert read(place.counted()) == counts


async def test_a_stream_that_breaks_is_an_error(place: Place) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await place.streamed(event(text="a"), RuntimeError("broken"))
    assert read(place.counted()) == (1, 1, 0, 1)


async def test_a_caller_who_leaves_is_neither_here_nor_there(place: Place) -> None:
    source = Stream((event(text="a"), event(text="b"), DONE), place.clock)
    stream = await place.observed(source)
    assert not isinstance(stream, dict)
    assert (await anext(stream)).text == event(text="a")
    await stream.aclose()
    assert source.closed
    assert read(place.counted()) == (0, 0, 0, 1)


async def test_a_caller_who_leaves_after_the_last_event_counts(place: Place) -> None:
    stream = await place.observed(Stream((event(text="a"), DONE), place.clock))
    assert not isinstance(stream, dict)
    assert [await anext(stream), await anext(stream)] == [(event(text="a"), 1), (DONE, 1)]
    await stream.aclose()
    assert read(place.counted()) == (1, 0, 0, 1)


async def test_time_to_first_token_is_that_of_the_first_content(place: Place) -> None:
    await place.streamed(event(delta={"role": "assistant"}), 0.4, event(delta={"content": "a"}), 9.0, DONE)
    p95 = place.counted().ttft.percentile(0.95)
    assert p95 is not None
    assert 0.4 <= p95 < 0.5


async def test_a_wait_for_a_load_is_no_measure_of_a_version(place: Place) -> None:
    async def loading() -> AsyncIterator[AnswerEvent]:
        place.clock.advance(5)
        place.engine.tell(EngineEvent("load", 8, 5.0))
        yield AnswerEvent(event(text="a"), 1)
        yield AnswerEvent(DONE, 0)

    async def run(source: EventStream[AnswerEvent]) -> None:
        stream = await place.observed(source)
        assert not isinstance(stream, dict)
        assert [each async for each in stream]

    await run(loading())  # type: ignore[arg-type]
    assert read(place.counted()) == (1, 0, 0, 0)
    await run(Stream((0.1, event(text="a"), DONE), place.clock))
    assert read(place.counted()) == (1, 0, 0, 1)


async def test_versions_outside_a_canary_are_not_counted(place: Place) -> None:
    answer = whole(text="sugar")
    assert await place.observed(answer, canary_id=None) is answer
    assert place.outcomes.take() == {}


async def test_what_could_not_be_written_down_is_counted_on(place: Place) -> None:
    await place.observed(whole(text=""))
    taken = place.outcomes.take()
    await place.observed(whole(text="a"))
    place.outcomes.put_back(taken)
    assert read(place.counted()) == (2, 0, 1, 0)


def test_an_answer_without_choices_has_no_output() -> None:
    assert not has_output({})
    assert not has_output({"choices": []})


MADE_EMPTY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"logit_bias": {"2": 100}}, {"finish_reason": "stop"}),
    "words forbidden": ({"bad_words": ["sugar"]}, {"finish_reason": "stop"}),
    "format": ({"response_format": {"type": "json_object"}}, {"finish_reason": "stop"}),
    "stop string": ({"stop": [" "]}, {"finish_reason": "stop", "stop_reason": " "}),
    "stop token": ({"stop_token_ids": [5]}, {"finish_reason": "stop", "stop_reason": 5}),
    "stop string on the LoRAX route": ({"parameters": {"stop": [" "]}}, {"finish_reason": "stop", "stop_reason": " "}),
    "one token": ({"max_tokens": 1}, {"finish_reason": "length"}),
    "one token of a chat": ({"max_completion_tokens": 1}, {"finish_reason": "length"}),
    "one token on the LoRAX route": ({"parameters": {"max_new_tokens": 1}}, {"finish_reason": "length"}),
}


@pytest.mark.parametrize("name", MADE_EMPTY)
async def test_an_answer_that_the_caller_made_empty_does_not_count(place: Place, name: str) -> None:
    body, end = MADE_EMPTY[name]
    traits = RequestTraits.of(body, None)
    await place.observed({"choices": [{"index": 0, "text": "", **end}]}, traits=traits)
    await place.streamed(event(text=" "), event(text="", **end), DONE, traits=traits)
    assert read(place.counted())[:3] == (0, 0, 0)
    # With text, the same request counts as one good answer.
    await place.observed({"choices": [{"index": 0, "text": "sugar", **end}]}, traits=traits)
    assert read(place.counted())[:3] == (1, 0, 0)


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({"stop": ["\n\n"]}, {"finish_reason": "stop", "stop_reason": None}),
        ({"max_tokens": 1}, {"finish_reason": "stop"}),
        ({"max_tokens": 100}, {"finish_reason": "length"}),
        ({}, {"finish_reason": "stop"}),
    ],
)
async def test_an_answer_that_the_version_left_empty_counts(
    place: Place, body: dict[str, Any], end: dict[str, Any]
) -> None:
    traits = RequestTraits.of(body, None)
    await place.observed({"choices": [{"index": 0, "text": "", **end}]}, traits=traits)
    await place.streamed(event(text="", **end), DONE, traits=traits)
    assert read(place.counted())[:3] == (2, 0, 2)


async def test_nonfinite_answers_count_for_any_request(place: Place) -> None:
    place.engine.not_finite.add("id")
    await place.observed(whole(text=""), traits=RequestTraits.of({"logit_bias": {"2": 100}}, None))
    assert read(place.counted()) == (1, 0, 1, 0)


async def test_a_recipient_counts_once_and_its_times_never(place: Place) -> None:
    traits = RequestTraits.of({}, OTHERS.recipient_id)
    for _ in range(20):
        await place.observed(whole(text=""), traits=traits)
        await place.streamed(9.0, event(text="a"), DONE, traits=traits)
        place.outcomes.put_back(place.outcomes.take())
    assert read(place.counted()) == (1, 0, 1, 0)
