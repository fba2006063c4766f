"""Engine port over a fleet: the state of several replicas, their events, and their loss."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, EngineUnavailable
from app.engine.port import Endpoint, EngineEvent, EngineRequest, SmokeResult
from app.engine.status import EngineState, StatusReport
from app.ray.engine import RayEngine
from app.ray.snapshot import NO_REPORT, Snapshot, encode_snapshot
from app.ray.state import replica_report
from app.ray.transport import NoReplicas, ReplicaLost, Target
from app.ray.wire import encode_error, encode_smoke

KEY = VersionKey(1, "a" * 64, "b" * 64, 10, 20)
READY = replace(NO_REPORT, status=replace(NO_REPORT.status, state=EngineState.READY, slots=4, running=2))


def snapshot(node: str, report: StatusReport = READY, *events: EngineEvent, number: int = 0) -> bytes:
    routing = replica_report(node, report)
    return encode_snapshot(Snapshot(1, f"process-{node}", 7, report, routing, number, events, (0.5,)))


class Replicas:
    """Transport with scripted answers: snapshots for each poll, and one result of a smoke check."""

    def __init__(self, *polls: Sequence[bytes] | Exception) -> None:
        self.polls = list(polls)
        self.smoke: bytes | Exception = encode_smoke(SmokeResult(finite=True, has_effect=True))
        self.closed = False
        self.questions: list[bytes] = []
        self.targets: list[Target] = []

    async def connect(self) -> "Replicas":
        return self

    def answer(self, request: bytes, *, target: Target) -> Any:
        self.targets.append(target)
        return self

    async def next(self) -> bytes | None:
        raise NoReplicas

    async def call(self, method: str, argument: bytes, *, target: Target) -> bytes:
        self.targets.append(target)
        if isinstance(self.smoke, Exception):
            raise self.smoke
        return self.smoke

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
        await started(Replicas([b'{"wire": 2}']), start_s=-1)


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
    assert engine.report().status.pinned == engine.status().pinned == {1}
    await engine.unpin(2)
    await engine.unload(1)
    assert engine.status().pinned == frozenset()
    await engine.stop()
