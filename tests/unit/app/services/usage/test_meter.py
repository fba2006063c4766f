"""Metering: one record for each request that reached the engine, durable before the end of its answer is sent."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from adapters.identity import VersionKey
from app.domain.access import Caller, Scope
from app.domain.errors import EngineUnavailable, InvalidRequest, RegistryUnavailable
from app.domain.limits.limiter import RateLimitStatus, Reservation
from app.domain.money import FREE, Price
from app.domain.usage import UsageEntry, UsageRecord
from app.engine.port import Answer, AnswerEvent, Endpoint, EngineRequest, TokenUsage
from app.services.limits.service import LimitService, Permit
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from tests.support.serving import NoEngine

CALLER = Caller("key-of-pricing", 7, "pricing", frozenset({Scope.INFERENCE}), "salt")
AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
USED = TokenUsage(prompt_tokens=5, cached_tokens=4, output_tokens=2, ttft_s=0.125)
DONE = "data: [DONE]\n\n"
PERMIT = Permit("r", Reservation((), 0, 0, 0, 0), RateLimitStatus(None, None), FREE)


class Slow(Ledger):
    """Ledger that stores records only while ``may`` is set."""

    def __init__(self) -> None:
        self.kept: list[UsageRecord] = []
        self.may = asyncio.Event()
        self.may.set()
        self.works = True

    async def keep(self, entry: UsageEntry) -> None:
        await self.may.wait()
        if not self.works:
            raise RegistryUnavailable("the registry's database does not answer", retry_after=1)
        self.kept.append(entry.record)


class Settled(LimitService):
    """Fake limits that record the settled usage of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def settle(self, permit: Permit, tokens: int, cost: int = 0) -> None:
        self.seen.append((permit.request_id, tokens, cost))


class Stream:
    """Event stream with two tokens in each event. Its outcome is known once it has ended or was closed."""

    def __init__(
        self, engine: NoEngine, request_id: str, events: Sequence[str | Exception], *, has_outcome: bool = True
    ) -> None:
        self._engine, self._request_id, self._events = engine, request_id, iter(events)
        self._has_outcome = has_outcome

    def __aiter__(self):
        return self

    async def __anext__(self) -> AnswerEvent:
        event = next(self._events, None)
        if event is None or isinstance(event, Exception):
            await self.aclose()
            raise event or StopAsyncIteration
        return AnswerEvent(event, 2)

    async def aclose(self) -> None:
        if self._has_outcome:
            self._engine.usages.setdefault(self._request_id, USED)


@pytest.fixture
def ledger() -> Slow:
    return Slow()


@pytest.fixture
def engine() -> NoEngine:
    return NoEngine()


@pytest.fixture
def meter(ledger: Slow) -> Meter:
    times = iter(range(1000))
    return Meter(ledger, Settled(), clock=lambda: AT, monotonic=lambda: float(next(times)))


def request(identity: str = "r", version_id: int | None = 3, **body: object) -> EngineRequest:
    key = None if version_id is None else VersionKey(version_id, "c" * 64, "w" * 64, 1, 1)
    return EngineRequest(identity, Endpoint.COMPLETIONS, {"prompt": "x", **body}, "prices", key, "salt")


def event(text: str = "five", reason: str | None = None) -> str:
    choice = {"index": 0, "text": text, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]}, separators=(',', ':'))}\n\n"


async def metered(
    meter: Meter, engine: NoEngine, one: EngineRequest, outcome: Answer | BaseException, permit: Permit = PERMIT
) -> Any:
    """Meter a call that ends with this answer or error."""

    async def work() -> Answer:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return await meter.metered(CALLER, engine.begin(one), work(), permit=permit)


async def test_a_whole_answer_waits_for_its_record(engine, ledger, meter):
    engine.usages["r"] = replace(USED, load_s=1.875)
    ledger.may.clear()
    answer = {"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}
    asking = asyncio.create_task(metered(meter, engine, request(), answer))
    await asyncio.sleep(0.01)
    assert not asking.done()
    ledger.may.set()
    assert await asking is answer
    assert ledger.kept == [
        UsageRecord("r", AT, 7, "key-of-pricing", 3, 5, 4, 2, 0.125, 1.0, 1.875, "length", 200),
    ]


async def test_a_budget_counts_only_recorded_usage(engine, ledger):
    """A server may be killed at any moment, so no charge may exist without its record."""
    limits = Settled()
    meter = Meter(ledger, limits)
    engine.usages |= {"r": USED, "gone": USED}
    permit = Permit(
        "r", Reservation((), 0, 0, 0, 0), RateLimitStatus(None, None), Price(prompt=100, cached=10, output=1000)
    )
    ledger.may.clear()
    asking = asyncio.create_task(metered(meter, engine, request(), {"choices": []}, permit))
    gone = replace(permit, request_id="gone")
    leaving = asyncio.create_task(metered(meter, engine, request("gone"), asyncio.CancelledError(), gone))
    await asyncio.sleep(0.01)
    assert limits.seen == []
    ledger.may.set()
    await asyncio.gather(asking, leaving, return_exceptions=True)
    await meter.close()
    assert limits.seen == [("r", 7, 2140), ("gone", 7, 2140)]


async def test_a_reservation_returns_after_every_outcome(engine, ledger):
    limits = Settled()
    meter = Meter(ledger, limits)
    permit = Permit("r", Reservation((), 0, 0, 0, 0), RateLimitStatus(None, None), FREE)
    with pytest.raises(InvalidRequest):
        await metered(meter, engine, request(), InvalidRequest("no"), permit)
    ledger.works = False
    engine.usages["s"] = USED
    with pytest.raises(RegistryUnavailable):
        await metered(meter, engine, request("s"), {"choices": []}, replace(permit, request_id="s"))
    await meter.close()
    assert limits.seen == [("r", 0, 0), ("s", 7, 0)]


async def test_whoever_watches_is_told_of_each_record(engine, ledger, meter):
    told = []
    meter.watch(told.append)
    engine.usages["r"] = USED
    await metered(meter, engine, request(), {"choices": [{"finish_reason": "stop"}]})
    assert told == ledger.kept
    assert len(told) == 1


async def test_the_base_model_has_no_version(engine, ledger, meter):
    engine.usages["r"] = USED
    await metered(meter, engine, request(version_id=None), {"choices": [{"finish_reason": "stop"}]})
    (record,) = ledger.kept
    assert (record.version_id, record.load_s) == (None, None)


@pytest.mark.parametrize("usage_event", [[], ['data: {"choices":[],"usage":{}}\n\n']])
async def test_a_streams_end_goes_out_after_its_record(engine, ledger, meter, usage_event):
    said = 'he said "finish_reason":"stop" twice'
    events = [event(), event(said), event("end", "stop"), *usage_event, DONE]
    ledger.may.clear()
    stream = await metered(meter, engine, request(), Stream(engine, "r", events))
    assert [await anext(stream) for _ in range(2)] == events[:2]
    last = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.01)
    assert not last.done()
    assert ledger.kept == []
    ledger.may.set()
    assert [await last, *[one async for one in stream]] == events[2:]
    (record,) = ledger.kept
    assert (record.status, record.finish_reason, record.output_tokens) == (200, "stop", 2)
    await stream.aclose()
    await meter.close()
    assert len(ledger.kept) == 1


async def test_of_several_sequences_only_the_last_end_waits(engine, ledger, meter):
    events = [event("a", "stop"), event("b"), event("c", "length"), event("d", "stop"), event("e", "length"), DONE]
    ledger.may.clear()
    body: dict[str, Any] = {"prompt": ["x", "y"], "n": 2}
    stream = await metered(meter, engine, request(**body), Stream(engine, "r", events))
    assert [await anext(stream) for _ in range(4)] == events[:4]
    ledger.may.set()
    assert [one async for one in stream] == events[4:]
    assert [record.finish_reason for record in ledger.kept] == ["length"]


@pytest.mark.parametrize("read", [0, 1, 2])
async def test_who_goes_away_is_charged_for_what_was_produced(engine, ledger, meter, read):
    stream = await metered(meter, engine, request(), Stream(engine, "r", [event()] * 9))
    for _ in range(read):
        await anext(stream)
    await stream.aclose()
    await meter.close()
    (record,) = ledger.kept
    assert (record.status, record.finish_reason, record.prompt_tokens, record.output_tokens) == (499, None, 5, 2)


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidRequest("no"), 400), (EngineUnavailable("dead"), 503), (RuntimeError("?"), 500)],
)
async def test_a_request_that_fails_is_charged_for_what_was_produced(engine, ledger, meter, error, status):
    engine.usages["r"] = USED
    with pytest.raises(type(error)):
        await metered(meter, engine, request(), error)
    stream = await metered(meter, engine, request("s"), Stream(engine, "s", [event(), error]))
    await anext(stream)
    with pytest.raises(type(error)):
        await anext(stream)
    await stream.aclose()
    await meter.close()
    assert [(record.request_id, record.status) for record in ledger.kept] == [("r", status), ("s", status)]


@pytest.mark.parametrize(
    ("events", "tokens", "status"),
    [
        ([event(), event(), EngineUnavailable("the engine's machine is gone")], 4, 503),
        ([event(), event()], 4, 503),
        ([event(), event("", "stop"), DONE], 6, 200),
    ],
)
async def test_without_an_outcome_the_events_tokens_are_charged(engine, ledger, events, tokens, status):
    limits = Settled()
    meter = Meter(ledger, limits)
    source = Stream(engine, "r", events, has_outcome=False)
    permit = replace(PERMIT, price=Price(prompt=100, cached=10, output=1000))
    stream = await metered(meter, engine, replace(request(), token_ids=((1, 2, 3),)), source, permit)
    with contextlib.suppress(EngineUnavailable):
        assert [one async for one in stream] == events
    await stream.aclose()
    await meter.close()
    (record,) = ledger.kept
    assert (record.status, record.prompt_tokens, record.output_tokens, record.ttft_s) == (status, 3, tokens, None)
    assert limits.seen == [("r", 3 + tokens, 300 + 1000 * tokens)]


@pytest.mark.parametrize("read", [1, 2])
async def test_who_leaves_before_an_outcome_pays_for_events_read(engine, ledger, meter, read):
    stream = await metered(meter, engine, request(), Stream(engine, "r", [event()] * 9, has_outcome=False))
    for _ in range(read):
        await anext(stream)
    await stream.aclose()
    await meter.close()
    assert [(record.status, record.output_tokens) for record in ledger.kept] == [(499, 2 * read)]


async def test_a_request_that_never_reached_the_engine_has_no_record(engine, ledger, meter):
    with pytest.raises(EngineUnavailable):
        await metered(meter, engine, request(), EngineUnavailable("starting"))
    await meter.close()
    assert ledger.kept == []


@pytest.mark.parametrize(
    "events",
    [
        [event(), 'data: {"error":{"message":"x"}}\n\n', DONE],
        [event(), event("", "error"), DONE],
        [event(), event("", "abort"), DONE],
        [event(), DONE],
        [event()],
    ],
)
async def test_an_answer_that_the_engine_gave_up_is_no_whole_one(engine, ledger, meter, events):
    stream = await metered(meter, engine, request(), Stream(engine, "r", events))
    assert [one async for one in stream] == events
    assert [record.status for record in ledger.kept] == [503]


async def test_a_whole_answer_without_an_end_is_none(engine, ledger, meter):
    for number, reason in enumerate((None, "error", "abort")):
        engine.usages[str(number)] = USED
        await metered(meter, engine, request(str(number)), {"choices": [{"finish_reason": reason}]})
    assert [record.status for record in ledger.kept] == [503] * 3


async def test_a_disconnect_does_not_stop_the_record(engine, ledger, meter):
    engine.usages["r"] = USED
    ledger.may.clear()
    asking = asyncio.create_task(metered(meter, engine, request(), {"choices": [{"finish_reason": "stop"}]}))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    ledger.may.set()
    await meter.close()
    assert [record.status for record in ledger.kept] == [200]


async def test_an_answer_without_accounting_is_an_error(engine, ledger, meter, caplog):
    ledger.works = False
    engine.usages["r"] = USED
    with pytest.raises(RegistryUnavailable):
        await metered(meter, engine, request(), {"choices": [{"finish_reason": "stop"}]})
    stream = await metered(meter, engine, request("s"), Stream(engine, "s", [event(), event("", "stop"), DONE]))
    seen = [one async for one in stream]
    assert seen[0] == event()
    assert [json.loads(one.removeprefix("data: "))["error"]["code"] for one in seen[1:]] == ["registry_unavailable"]
    assert "was not recorded" in caplog.text
