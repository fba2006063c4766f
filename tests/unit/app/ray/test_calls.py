"""Calls of a gateway to replicas: retries before the first byte, one error event after it, outcomes of cut answers."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import DiskFull
from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, Busy, EngineUnavailable, InvalidRequest, NotFound, QueueFull
from app.domain.load_phases import LoadPhases
from app.engine.port import AnswerEvent, Endpoint, EngineRequest
from app.ray.answering import Answering
from app.ray.calls import ATTEMPTS, RayCall
from app.ray.error_words import ReplicaFailed
from app.ray.routes import Routes
from app.scheduling.replica_report import ReplicaReport
from app.services.deletion.version_guard import VersionGuard
from tests.support.fleet import Fleet, OpenGuard, ScriptedEngine

KEY = VersionKey(1, "a" * 64, "b" * 64, 10, 20)
REQUEST = EngineRequest("req-1", Endpoint.CHAT, {"stream": True}, "pricing", KEY, "salt", "hi", "retail")
WHOLE = replace(REQUEST, body={})
EVENTS = (AnswerEvent("data: one\n\n", 1), AnswerEvent("data: two\n\n", 2), AnswerEvent("data: [DONE]\n\n", 0))


def answering(engine: ScriptedEngine, guard: OpenGuard | None = None, *, node: str = "") -> Answering:
    checks = cast("VersionGuard", guard or OpenGuard())
    return Answering(cast("Any", engine), checks, lambda _key, _tenant: None, node=node)


def call_to(request: EngineRequest, fleet: Fleet, routes: Routes | None = None) -> RayCall:
    return RayCall(request, fleet, routes or Routes())


def routes_to(*nodes: str) -> Routes:
    """Return routes to replicas that have just reported."""
    routes = Routes()
    for node in nodes:
        routes.report(ReplicaReport(node, 4))
    return routes


async def all_of(call: RayCall) -> list[AnswerEvent]:
    answer = await call.answer()
    assert not isinstance(answer, dict)
    return [event async for event in answer]


async def test_a_stream_brings_its_events_and_its_outcome() -> None:
    engine = ScriptedEngine(*EVENTS)
    engine.load, engine.finite = LoadPhases(1.0, 2.0, 3.0, 4.0), False
    call = call_to(REQUEST, Fleet(answering(engine)))
    answer = await call.answer()
    assert call.outcome.load == engine.load
    assert not isinstance(answer, dict)
    assert [event async for event in answer] == list(EVENTS)
    assert call.outcome == engine.calls[0].outcome
    assert call.outcome.usage is not None
    assert call.outcome.usage.output_tokens == 3
    assert not engine.calls[0].aborted


async def test_a_whole_answer_brings_its_outcome() -> None:
    engine = ScriptedEngine()
    call = call_to(WHOLE, Fleet(answering(engine)))
    answer = await call.answer()
    assert isinstance(answer, dict)
    assert answer["usage"]["completion_tokens"] == 7
    assert call.outcome == engine.calls[0].outcome


async def test_an_empty_stream_ends_at_once() -> None:
    assert await all_of(call_to(REQUEST, Fleet(answering(ScriptedEngine())))) == []


@pytest.mark.parametrize("lost_after", [0, 1])
async def test_a_replica_lost_before_the_first_byte_is_replaced(lost_after: int) -> None:
    engines = ScriptedEngine(*EVENTS), ScriptedEngine(*EVENTS)
    fleet = Fleet(*map(answering, engines))
    fleet.losses = [lost_after]
    assert await all_of(call_to(REQUEST, fleet)) == list(EVENTS)
    assert fleet.attempts == 2


async def test_retries_end_with_an_error() -> None:
    fleet = Fleet(answering(ScriptedEngine(*EVENTS)))
    fleet.losses = [0] * 10
    with pytest.raises(EngineUnavailable, match="stopped while it answered"):
        await call_to(REQUEST, fleet).answer()
    assert fleet.attempts == ATTEMPTS


async def test_a_retry_after_the_deadline_is_refused() -> None:
    fleet = Fleet(answering(ScriptedEngine(*EVENTS)))
    call = call_to(replace(REQUEST, deadline_s=0.0), fleet)
    with pytest.raises(Busy, match="deadline"):
        await call.answer()
    assert fleet.attempts == 0


@pytest.mark.parametrize("told", [1, 2, 3])
async def test_a_stream_cut_after_that_ends_in_one_error_event(told: int) -> None:
    fleet = Fleet(answering(ScriptedEngine(*EVENTS)))
    fleet.losses = [1 + told]
    call = call_to(REQUEST, fleet)
    events = await all_of(call)
    assert events[:told] == list(EVENTS[:told])
    error, done = events[told:]
    assert json.loads(error.text.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert (error.tokens, done) == (0, AnswerEvent("data: [DONE]\n\n", 0))
    assert fleet.attempts == 1
    # Its usage is not known, so the meter charges the events that were read.
    assert call.outcome.usage is None


async def test_a_whole_answer_without_an_outcome_counts_by_itself() -> None:
    fleet = Fleet(answering(ScriptedEngine()))
    fleet.losses = [2]
    call = call_to(WHOLE, fleet)
    assert isinstance(await call.answer(), dict)
    assert call.outcome.usage is not None
    assert (call.outcome.usage.prompt_tokens, call.outcome.usage.output_tokens) == (3, 7)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("too long", param="prompt"),
        QueueFull("full", retry_after=3),
        AdapterLoadFailed("bad weights", version_id=1),
        DiskFull("no room", retry_after=9, reason="disk"),
    ],
)
async def test_an_error_of_the_engine_is_raised_as_it_was(error: Exception) -> None:
    engine = ScriptedEngine()
    engine.error = error
    fleet = Fleet(answering(engine))
    with pytest.raises(type(error), match=str(error)):
        await call_to(REQUEST, fleet).answer()
    assert fleet.attempts == 1


@pytest.mark.parametrize("whole_or_stream", [REQUEST, WHOLE])
async def test_a_request_of_a_dead_engine_goes_to_another(whole_or_stream: EngineRequest) -> None:
    dead, alive = ScriptedEngine(), ScriptedEngine(*EVENTS)
    dead.error = EngineUnavailable("The engine is restarting.", retry_after=15)
    dead.finite = False
    fleet, routes = Fleet(answering(dead), answering(alive)), routes_to("0", "1")
    digests = [VersionKey(number, f"{number:064}", "b" * 64, 10, 20) for number in range(8)]
    for key in digests:
        call = call_to(replace(whole_or_stream, adapter=key), fleet, routes)
        answer = await call.answer()
        if not isinstance(answer, dict):
            assert [event async for event in answer] == list(EVENTS)
        assert call.outcome.finite, "the outcome is that of the engine that answered"
    assert fleet.attempts > len(digests)
    assert (routes.load("0"), routes.load("1")) == (0, 0)


async def test_without_another_engine_its_error_is_raised() -> None:
    dead = ScriptedEngine()
    dead.error = EngineUnavailable("The engine is restarting.", retry_after=15)
    fleet = Fleet(answering(dead))
    with pytest.raises(EngineUnavailable, match="is restarting") as caught:
        await call_to(REQUEST, fleet, routes_to("0")).answer()
    assert (caught.value.retry_after, fleet.attempts) == (15, ATTEMPTS)


async def test_a_fault_of_a_replica_shows_nothing_of_the_prompt() -> None:
    engine = ScriptedEngine()
    engine.error = ValueError("the prompt was: secret")
    with pytest.raises(ReplicaFailed) as caught:
        await call_to(REQUEST, Fleet(answering(engine))).answer()
    assert "secret" not in str(caught.value)


async def test_an_error_in_mid_stream_is_one_event_with_the_usage() -> None:
    engine = ScriptedEngine(*EVENTS[:2])
    engine.stream_error = EngineUnavailable("The engine stopped while it answered. Try again later.")
    call = call_to(REQUEST, Fleet(answering(engine)))
    events = await all_of(call)
    assert [event.text.startswith('data: {"error"') for event in events] == [False, False, True, False]
    assert call.outcome.usage is not None
    assert call.outcome.usage.output_tokens == 3


async def test_closing_a_stream_aborts_it_and_brings_its_outcome() -> None:
    engine = ScriptedEngine(*EVENTS[:2])
    engine.endless = True
    replica = answering(engine)
    call = call_to(REQUEST, Fleet(replica))
    answer = await call.answer()
    assert not isinstance(answer, dict)
    assert await anext(answer) == EVENTS[0]
    await answer.aclose()
    assert engine.calls[0].aborted
    assert call.outcome.usage is not None
    assert call.outcome.usage.output_tokens == engine.calls[0].told
    assert replica.running == 0
    assert await replica.outcome("req-1") == b""


async def test_cancelling_a_whole_answer_ends_it_at_the_replica() -> None:
    engine = ScriptedEngine()
    engine.may_answer.clear()
    replica = answering(engine)
    task = asyncio.create_task(cast("Any", call_to(WHOLE, Fleet(replica)).answer()))
    while not engine.calls:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replica.running == 0


async def test_a_deleted_version_is_not_loaded() -> None:
    engine, guard = ScriptedEngine(*EVENTS), OpenGuard()
    guard.error = NotFound("This version of the adapter was deleted.", param="model")
    with pytest.raises(NotFound, match="deleted"):
        await call_to(REQUEST, Fleet(answering(engine, guard))).answer()
    assert engine.calls == []


async def test_a_gateway_of_another_release_gets_a_sentence() -> None:
    fleet = Fleet(answering(ScriptedEngine(*EVENTS)))
    fleet.changed = lambda data: data.replace(b'"wire":', b'"wire":9')
    with pytest.raises(EngineUnavailable, match="Run the same release of Tenora"):
        await call_to(REQUEST, fleet).answer()


async def test_without_replicas_the_engine_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable, match="No engine replica runs"):
        await call_to(REQUEST, Fleet()).answer()


@given(st.lists(st.none() | st.integers(0, 6), max_size=4), st.integers(1, 3))
def test_no_event_is_lost_or_repeated_however_replicas_are_lost(losses: Sequence[int | None], replicas: int) -> None:
    async def run() -> None:
        fleet = Fleet(*(answering(ScriptedEngine(*EVENTS)) for _ in range(replicas)))
        fleet.losses = list(losses)
        call = call_to(REQUEST, fleet)
        try:
            events = await all_of(call)
        except EngineUnavailable:
            assert all(loss in (0, 1) for loss in losses[:ATTEMPTS])
            return
        told = [event for event in events if event in EVENTS[:2]]
        assert told == list(EVENTS[: len(told)])
        assert sum(event.text.startswith('data: {"error"') for event in events) <= 1
        assert events[-1] == EVENTS[-1]

    asyncio.run(run())


async def test_a_request_goes_to_the_replica_of_the_rule_until_its_end() -> None:
    engine = ScriptedEngine(*EVENTS)
    fleet, routes = Fleet(answering(engine), answering(engine)), routes_to("0", "1")
    answer = await call_to(REQUEST, fleet, routes).answer()
    assert not isinstance(answer, dict)
    (target,) = fleet.targets
    assert target.version == KEY.digest
    assert target.node_id is not None
    assert routes.load(target.node_id) == routes.load("0") + routes.load("1") == 1
    assert [event async for event in answer] == list(EVENTS)
    assert routes.load(target.node_id) == 0
    await call_to(WHOLE, fleet, routes).answer()
    assert fleet.targets[1] == target
    assert routes.load(target.node_id) == 0


async def test_a_request_that_ray_sent_elsewhere_counts_there() -> None:
    engine = ScriptedEngine()
    engine.endless = True
    engine.events = EVENTS[:1]
    routes = routes_to("0", "1")
    fleet = Fleet(answering(engine, node="1"), answering(engine, node="0"))
    answer: Any = await call_to(REQUEST, fleet, routes).answer()
    [target] = fleet.targets
    chosen, other = str(target.node_id), "1" if target.node_id == "0" else "0"
    assert (routes.load(chosen), routes.load(other)) == (0, 1)
    await answer.aclose()
    assert (routes.load(chosen), routes.load(other)) == (0, 0)


async def test_a_retry_avoids_the_replicas_that_were_lost() -> None:
    engine = ScriptedEngine(*EVENTS)
    fleet, routes = Fleet(answering(engine), answering(engine)), routes_to("0", "1")
    fleet.losses = [1]
    assert await all_of(call_to(REQUEST, fleet, routes)) == list(EVENTS)
    assert {target.node_id for target in fleet.targets} == {"0", "1"}
    for node in ("0", "1"):
        routes.report(ReplicaReport(node, 4))
    fleet.losses = [None, None, 0, 0]
    # Both are lost. The next attempt goes to any replica.
    assert await all_of(call_to(REQUEST, fleet, routes)) == list(EVENTS)
    assert fleet.targets[4].node_id is None
    assert (routes.load("0"), routes.load("1")) == (0, 0)
    counts = [routes.counts_of(node) for node in ("0", "1")]
    assert sum(one.requests for one in counts) == 4
    assert (sum(one.retries for one in counts), sum(one.lost for one in counts)) == (2, 3)


async def test_a_request_without_a_ready_replica_is_refused() -> None:
    routes = Routes()
    routes.report(ReplicaReport("0", 4, ready=False))
    fleet = Fleet(answering(ScriptedEngine(*EVENTS)))
    with pytest.raises(EngineUnavailable, match="No engine replica is ready"):
        await call_to(REQUEST, fleet, routes).answer()
    assert fleet.attempts == 0


@pytest.mark.parametrize("losses", [[1], [3]])
async def test_a_lost_replica_ends_its_route(losses: list[int | None]) -> None:
    fleet, routes = Fleet(answering(ScriptedEngine(*EVENTS))), routes_to("0")
    fleet.losses = losses
    with contextlib.suppress(EngineUnavailable):
        await all_of(call_to(REQUEST, fleet, routes))
    assert routes.load("0") == 0


async def test_closing_a_stream_ends_its_route() -> None:
    engine = ScriptedEngine(*EVENTS[:2])
    engine.endless = True
    fleet, routes = Fleet(answering(engine)), routes_to("0")
    answer = await call_to(REQUEST, fleet, routes).answer()
    assert not isinstance(answer, dict)
    assert routes.load("0") == 1
    await answer.aclose()
    assert routes.load("0") == 0


async def test_cancelling_a_request_ends_its_route() -> None:
    engine = ScriptedEngine()
    engine.may_answer.clear()
    fleet, routes = Fleet(answering(engine)), routes_to("0")
    task = asyncio.create_task(cast("Any", call_to(WHOLE, fleet, routes).answer()))
    while not engine.calls:
        await asyncio.sleep(0)
    assert routes.load("0") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert routes.load("0") == 0


async def test_a_refused_request_and_an_empty_answer_end_their_routes() -> None:
    engine = ScriptedEngine()
    fleet, routes = Fleet(answering(engine)), routes_to("0")
    assert await all_of(call_to(REQUEST, fleet, routes)) == []
    assert routes.load("0") == 0
    engine.error = QueueFull("full", retry_after=3)
    with pytest.raises(QueueFull):
        await call_to(REQUEST, fleet, routes).answer()
    assert routes.load("0") == 0
