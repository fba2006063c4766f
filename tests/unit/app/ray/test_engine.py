"""Engine port over a fleet: the state of several replicas, their events, and their loss."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, Busy, EngineUnavailable
from app.engine.port import Endpoint, EngineEvent, EngineRequest, SmokeResult
from app.engine.status import EngineState, StatusReport
from app.ray.engine import RayEngine
from app.ray.snapshot import NO_REPORT, Snapshot, encode_snapshot
from app.ray.state import replica_report
from app.ray.transport import Deployed, NoReplicas, Phase, ReplicaLost, Target
from app.ray.wire import WIRE_VERSION, encode_error, encode_smoke

KEY = VersionKey(1, "a" * 64, "b" * 64, 10, 20)
READY = replace(NO_REPORT, status=replace(NO_REPORT.status, state=EngineState.READY, slots=4, running=2))


def snapshot(node: str, report: StatusReport = READY, *events: EngineEvent, number: int = 0) -> bytes:
    routing = replica_report(node, report)
    return encode_snapshot(Snapshot(WIRE_VERSION, f"process-{node}", 7, report, routing, number, events, (0.5,)))


class Replicas:
    """Transport with scripted answers: snapshots for each poll, and one result of a smoke check."""

    def __init__(self, *polls: Sequence[bytes] | Exception) -> None:
        self.polls = list(polls)
        self.smoke: bytes | Exception = encode_smoke(SmokeResult(finite=True, has_effect=True))
        self.closed = self.lost = False
        self.state: Deployed | Exception = Deployed(Phase.STARTING)
        self.wakes = self.lost_wakes = 0
        self.may_wake = asyncio.Event()
        self.questions: list[bytes] = []
        self.targets: list[Target] = []

    async def connect(self) -> "Replicas":
        return self

    def answer(self, request: bytes, *, target: Target) -> Any:
        self.targets.append(target)
        return self

    async def next(self) -> bytes | None:
        raise ReplicaLost if self.lost else NoReplicas

    def cancel(self) -> None:
        pass

    async def call(self, method: str, argument: bytes, *, target: Target) -> bytes:
        self.targets.append(target)
        if isinstance(self.smoke, Exception):
            raise self.smoke
        return self.smoke

    async def wake(self) -> None:
        self.wakes += 1
        if self.wakes <= self.lost_wakes:
            raise ReplicaLost
        await self.may_wake.wait()

    async def deployed(self) -> Deployed:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    async def call_all(self, method: str, argument: bytes, *, timeout_s: float) -> list[bytes]:
        self.questions.append(argument)
        poll = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        if isinstance(poll, Exception):
            raise poll
        return list(poll)

    async def close(self) -> None:
        self.closed = True


async def started(replicas: Replicas, start_s: float = 60) -> RayEngine:
    engine = RayEngine(replicas.connect, start_s=start_s)
    await engine.start()
    return engine


async def test_the_state_is_the_sum_over_the_replicas() -> None:
    replicas = Replicas([snapshot("a"), snapshot("b")])
    engine = await started(replicas)
    assert (engine.status().state, engine.status().slots, engine.status().running) == (EngineState.READY, 8, 4)
    assert set(engine.nodes) == {"a", "b"}
    await engine.check()
    await engine.stop()
    assert replicas.closed
    with pytest.raises(EngineUnavailable):
        await engine.smoke(KEY)


async def test_the_start_waits_for_a_ready_replica() -> None:
    engine = await started(Replicas(NoReplicas(), [snapshot("a", NO_REPORT)], [snapshot("a")]))
    assert engine.status().state is EngineState.READY
    await engine.stop()


async def test_a_start_without_replicas_names_the_command() -> None:
    with pytest.raises(EngineUnavailable, match=r"No engine replica runs\. Look at them with `tenora engines status`"):
        await started(Replicas(NoReplicas()), start_s=-1)


async def test_a_start_with_replicas_of_another_release_says_so() -> None:
    with pytest.raises(EngineUnavailable, match="Run the same release of Tenora"):
        await started(Replicas([b'{"wire": 1}']), start_s=-1)


async def test_a_start_at_zero_replicas_is_ready_at_once() -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = await started(replicas)
    assert engine.status().state is EngineState.ASLEEP
    await engine.check()
    assert replicas.wakes == 0
    await engine.stop()


def request(number: int, tenant: str = "retail", deadline_s: float | None = None) -> EngineRequest:
    return EngineRequest(
        f"req-{number}", Endpoint.CHAT, {}, "base", None, "salt", "hi", tenant=tenant, deadline_s=deadline_s
    )


async def waiting(engine: RayEngine, number: int) -> None:
    async with asyncio.timeout(30):
        while engine.status().waiting != number:
            await asyncio.sleep(0)


async def test_requests_wait_for_a_replica_and_one_call_wakes_it() -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = await started(replicas)
    answers = [asyncio.ensure_future(engine.begin(request(number)).answer()) for number in range(5)]
    await waiting(engine, 5)
    (queue,) = engine.report().tenants
    assert (queue.tenant, queue.running, queue.waiting) == ("retail", 0, 5)
    await asyncio.sleep(0)
    assert (replicas.wakes, replicas.targets) == (1, [])
    replicas.polls = [[snapshot("a")]]
    replicas.may_wake.set()
    # The transport of this test then answers that no replica runs.
    for answer in answers:
        with pytest.raises(EngineUnavailable, match="No engine replica runs"):
            await answer
    assert replicas.targets == [Target("a")] * 5
    assert engine.status().waiting == 0
    assert engine.report().tenants == ()
    await engine.stop()


async def test_a_deadline_before_the_expected_start_is_refused() -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = RayEngine(replicas.connect, start_s=60, expected_start_s=30)
    await engine.start()
    with pytest.raises(Busy, match=r"x-request-timeout is 10\.0 s") as caught:
        await engine.begin(request(1, deadline_s=10)).answer()
    # The clock has moved on a little.
    assert caught.value.retry_after in {20, 21}
    # Otherwise callers with short deadlines would never get an answer.
    await asyncio.sleep(0)
    assert (replicas.wakes, engine.status().waiting) == (1, 0)
    await engine.stop()


@pytest.mark.parametrize("end", ["leave", "stop"])
async def test_the_end_of_the_server_fails_waiting_requests(end: str) -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = await started(replicas)
    answers = [asyncio.ensure_future(engine.begin(request(number)).answer()) for number in range(2)]
    await waiting(engine, 2)
    if end == "leave":
        engine.leave()
    else:
        await engine.stop()
    for answer in answers:
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await answer
    await engine.stop()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Deployed(Phase.FAILED, "OSError: No space left on device"), "No space left on device"),
        (Deployed(Phase.ABSENT), "No engine replicas are deployed"),
    ],
)
async def test_replicas_that_cannot_start_fail_requests(state: Deployed, words: str) -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = await started(replicas)
    answer = asyncio.ensure_future(engine.begin(request(1)).answer())
    await waiting(engine, 1)
    replicas.state = state
    replicas.may_wake.set()
    with pytest.raises(EngineUnavailable, match=words) as caught:
        await answer
    assert caught.value.retry_after is not None
    with pytest.raises(EngineUnavailable, match=words):
        await engine.begin(request(2)).answer()
    with pytest.raises(EngineUnavailable, match="No engine replica is ready"):
        await engine.check()
    await engine.stop()


async def test_a_lost_replica_gets_no_request_until_it_reports() -> None:
    replicas = Replicas([snapshot("a"), snapshot("b")], [snapshot("b")])
    engine = await started(replicas)
    replicas.lost = True
    with pytest.raises(EngineUnavailable, match="stopped while it answered"):
        await engine.begin(request(1)).answer()
    assert engine.nodes == ()
    await engine.stop()


async def test_requests_wait_while_the_last_replica_is_replaced() -> None:
    replicas = Replicas([snapshot("a")])
    engine = await started(replicas)
    replicas.lost = True
    replicas.polls = [NoReplicas()]
    answer = asyncio.ensure_future(engine.begin(request(1)).answer())
    await waiting(engine, 1)
    await engine.check()
    replicas.lost = False
    replicas.polls = [[snapshot("a")]]
    replicas.may_wake.set()
    with pytest.raises(EngineUnavailable, match="No engine replica runs"):
        await answer
    assert replicas.targets == [Target("a")] * 2
    await engine.stop()


async def test_a_replica_that_ray_stopped_is_left_out_at_once() -> None:
    replicas = Replicas([snapshot("a"), snapshot("b")], [snapshot("b")])
    engine = await started(replicas)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while len(replicas.questions) < 3:
                await asyncio.sleep(0.01)
    assert engine.nodes == ("b",)
    await engine.stop()


async def test_a_silent_cluster_fails_requests_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas([snapshot("a")])
    engine = await started(replicas)
    replicas.polls, replicas.state = [NoReplicas()], ReplicaLost()
    replicas.lost = True
    answer = asyncio.ensure_future(engine.begin(request(1)).answer())
    await waiting(engine, 1)
    monkeypatch.setattr("app.ray.engine._SILENT_S", 0.0)
    replicas.may_wake.set()
    with pytest.raises(EngineUnavailable, match="does not answer"):
        await answer
    await engine.stop()


async def test_a_replica_that_is_not_ready_is_not_asked_in_a_loop() -> None:
    replicas = Replicas([snapshot("a")])
    engine = await started(replicas)
    replicas.polls = [[snapshot("a", NO_REPORT)]]
    while engine.status().state is EngineState.READY:
        await asyncio.sleep(0.01)
    replicas.may_wake.set()
    answer = asyncio.ensure_future(engine.begin(request(1)).answer())
    await waiting(engine, 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert replicas.wakes == 1
    answer.cancel()
    await asyncio.wait((answer,))
    assert engine.status().waiting == 0
    await engine.stop()


async def test_a_call_that_was_lost_is_repeated_while_requests_wait() -> None:
    replicas = Replicas(NoReplicas())
    replicas.state, replicas.lost_wakes = Deployed(Phase.ASLEEP), 1
    engine = await started(replicas)
    answer = asyncio.ensure_future(engine.begin(request(1)).answer())
    async with asyncio.timeout(30):
        while replicas.wakes < 2:
            await asyncio.sleep(0.01)
    answer.cancel()
    await asyncio.wait((answer,))
    await engine.stop()


async def test_smoke_checks_wait_for_a_replica_too() -> None:
    replicas = Replicas(NoReplicas())
    replicas.state = Deployed(Phase.ASLEEP)
    engine = await started(replicas)
    check = asyncio.ensure_future(engine.smoke(KEY))
    await waiting(engine, 1)
    replicas.polls = [[snapshot("a")]]
    replicas.may_wake.set()
    assert (await check).finite
    await engine.stop()


async def test_listeners_get_the_events_since_the_last_question() -> None:
    load, evict = EngineEvent("load", 1), EngineEvent("evict", 1)
    replicas = Replicas([snapshot("a", NO_REPORT, number=3)], [snapshot("a", READY, load, evict, number=5)])
    engine = RayEngine(replicas.connect, start_s=60)
    seen: list[EngineEvent] = []
    waits: list[float] = []
    engine.subscribe(seen.append)
    engine.watch_waits(waits.append)
    await engine.start()
    assert seen == [load, evict]
    assert waits == [0.5, 0.5]
    assert replicas.questions == [b"{}", b'{"process-a": 3}']
    await engine.stop()


async def test_smoke_checks_bring_their_result_or_error() -> None:
    replicas = Replicas([snapshot("a")])
    engine = await started(replicas)
    assert await engine.smoke(KEY) == SmokeResult(finite=True, has_effect=True)
    replicas.smoke = encode_error(AdapterLoadFailed("bad", version_id=1))
    with pytest.raises(AdapterLoadFailed, match="bad"):
        await engine.smoke(KEY)
    for lost in (ReplicaLost(), NoReplicas(), b"", b"nonsense"):
        replicas.smoke = lost
        with pytest.raises(EngineUnavailable):
            await engine.smoke(KEY)
    assert set(replicas.targets) == {Target("a", KEY.digest)}
    await engine.stop()


async def test_requests_follow_the_reports_of_the_replicas() -> None:
    busy = replace(READY, status=replace(READY.status, running=9))
    replicas = Replicas([snapshot("a", busy), snapshot("b"), snapshot("c", NO_REPORT)])
    engine = await started(replicas)
    for _ in range(2):
        # The first call ends before the second one begins, so it does not count any more.
        with pytest.raises(EngineUnavailable, match="No engine replica runs"):
            await engine.begin(EngineRequest("req-1", Endpoint.CHAT, {}, "base", None, "salt", "hi")).answer()
    assert replicas.targets == [Target("b"), Target("b")]
    await engine.stop()


async def test_placement_is_left_to_the_replicas() -> None:
    engine = await started(Replicas([snapshot("a")]))
    engine.prefetch(KEY)
    await engine.preload(KEY)
    await engine.unload(1)
    assert not await engine.holds(1)
    await engine.stop()


async def test_pins_are_those_of_the_registry_not_of_the_replicas() -> None:
    pinned = replace(READY, status=replace(READY.status, pinned=frozenset({1, 2})))
    engine = await started(Replicas([snapshot("a", pinned)]))
    # Else the pins that the replicas know would never reach the routes.
    assert engine.status().pinned == frozenset()
    await engine.pin(KEY)
    assert engine.status().pinned == {1}
    # Operators see what the replicas hold.
    assert engine.report().status.pinned == {1, 2}
    await engine.unpin(2)
    await engine.unload(1)
    assert engine.status().pinned == frozenset()
    await engine.stop()


async def test_the_report_has_each_replica_and_its_requests() -> None:
    engine = await started(Replicas([snapshot("a"), snapshot("b", NO_REPORT)]))
    assert [(one.node, one.state, one.slots, one.lost) for one in engine.report().replicas] == [
        ("a", EngineState.READY, 4, 0),
        ("b", EngineState.STARTING, 0, 0),
    ]
    await engine.stop()
