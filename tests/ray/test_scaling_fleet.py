"""Light replicas from zero to two and back to zero, on a real cluster of Ray."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from app.domain.errors import Busy
from app.engine.status import EngineState
from app.ray.engine import RayEngine
from app.settings import Settings
from tests.support.light_cluster import eventually, light_cluster, light_engine, light_request

pytestmark = pytest.mark.slow

REQUESTS = 1000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("scaling")
    with light_cluster(home, "0:2", target_requests=4, upscale_delay_s=1, downscale_delay_s=2) as settings:
        yield settings


async def asleep(engine: RayEngine) -> None:
    # Ray's look-back is 30 s, and its metrics come every 10 s.
    await eventually(lambda: engine.status().state is EngineState.ASLEEP, 180)


@pytest.mark.long
async def test_from_zero_all_are_answered_in_fair_order(settings: Settings) -> None:
    async with light_engine(settings, expected_start_s=30) as engine:
        await asleep(engine)
        await engine.check()
        answered: list[str] = []

        async def ask(name: str, tenant: str) -> None:
            answer: Any = await engine.begin(light_request(name, tenant)).answer()
            assert answer["pid"]
            answered.append(name)

        first = asyncio.ensure_future(ask("first", "a"))
        many = [asyncio.ensure_future(ask(f"a-{number}", "a")) for number in range(REQUESTS - 1)]
        await eventually(lambda: engine.status().waiting == REQUESTS)
        assert [(queue.tenant, queue.waiting) for queue in engine.report().tenants] == [("a", REQUESTS)]
        # A deadline that no start can meet is refused at once, by the expected time.
        with pytest.raises(Busy, match="x-request-timeout"):
            await engine.begin(light_request("hasty", "c", deadline_s=1)).answer()
        many.append(asyncio.ensure_future(ask("late", "b")))
        await first
        await asyncio.gather(*many)
        assert len(answered) == REQUESTS + 1
        assert answered.index("late") < REQUESTS / 2
        assert engine.status().waiting == 0
        # The gateway asks for the state each second. That must not keep the replica.
        await asleep(engine)


async def test_replicas_follow_the_load_and_lose_no_request(settings: Settings) -> None:
    async with light_engine(settings) as engine:
        streams = [
            engine.begin(light_request(f"stream-{number}", stream=True, events=10**6, every_s=0.05))
            for number in range(12)
        ]
        answers: list[Any] = await asyncio.gather(*(stream.answer() for stream in streams))
        await eventually(lambda: len(engine.nodes) == 2, 120)
        replica = {int((await anext(answer)).text.split()[2]) for answer in answers}
        assert len(replica) == 1
        for answer in answers[1:]:
            await answer.aclose()
        # One stream is no load for two replicas. If its replica is the one to end, it ends after the stream.
        await eventually(lambda: len(engine.nodes) == 1, 120)
        for _ in range(20):
            event = await anext(answers[0])
            assert not event.text.startswith('data: {"error"')
        await answers[0].aclose()
        assert streams[0].outcome.usage is not None
        await asleep(engine)


async def test_requests_wait_while_a_lone_replica_is_replaced(settings: Settings) -> None:
    async with light_engine(settings) as engine:
        answer: Any = await engine.begin(light_request("one")).answer()
        for number in range(3):
            os.kill(answer["pid"], signal.SIGKILL)
            requests = [engine.begin(light_request(f"again-{number}-{n}")) for n in range(5)]
            answers: list[Any] = await asyncio.gather(*(request.answer() for request in requests))
            assert {one["pid"] for one in answers}.isdisjoint({answer["pid"]})
            answer = answers[0]


async def test_a_replica_that_hangs_hides_no_other(settings: Settings) -> None:
    async with light_engine(settings) as engine:
        streams = [
            engine.begin(light_request(f"load-{number}", stream=True, events=10**6, every_s=0.05))
            for number in range(12)
        ]
        answers: list[Any] = await asyncio.gather(*(stream.answer() for stream in streams))
        await eventually(lambda: len(engine.nodes) == 2, 120)
        pid = int((await anext(answers[0])).text.split()[2])
        os.kill(pid, signal.SIGSTOP)
        try:
            await eventually(lambda: engine.nodes != () and f"node-{pid}" not in engine.nodes)
            assert engine.status().state is EngineState.READY
            answer: Any = await engine.begin(light_request("other")).answer()
            assert answer["pid"] != pid
        finally:
            os.kill(pid, signal.SIGKILL)
        for answer in answers:
            await answer.aclose()
