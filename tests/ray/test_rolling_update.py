"""Light replicas that are replaced one after the other, and replicas that cannot start."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import EngineUnavailable
from app.ray.application import deploy
from app.ray.engine import RayEngine
from tests.support.light_cluster import eventually, light_cluster, light_engine, light_request
from tests.support.light_fleet import LightReplica, light_settings

pytestmark = [pytest.mark.slow, pytest.mark.long]

CALLERS = 8
LEAST = 200


class Load:
    """Callers that ask for whole answers and streams by turns, without a pause."""

    def __init__(self, engine: RayEngine) -> None:
        self._engine, self.ended = engine, asyncio.Event()
        self.answered = 0
        self.failures: list[str] = []

    async def run(self, caller: int) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            name = f"load-{caller}-{number}"
            body = {"stream": True, "events": 20, "every_s": 0.05} if number % 2 else {"takes_s": 0.05}
            try:
                answer: Any = await self._engine.begin(light_request(name, f"tenant-{caller}", **body)).answer()
                texts = [] if isinstance(answer, dict) else [event.text async for event in answer]
            except Exception as error:  # noqa: BLE001 - any is a failure of this test
                self.failures.append(repr(error))
                continue
            self.failures += [text for text in texts if "error" in text]
            self.answered += 1


async def test_a_rolling_update_under_load_fails_no_request(tmp_path: Path) -> None:
    with light_cluster(tmp_path, "2") as settings:
        async with light_engine(settings) as engine:
            await eventually(lambda: len(engine.nodes) == 2)
            before, load = set(engine.nodes), Load(engine)
            callers = [asyncio.ensure_future(load.run(caller)) for caller in range(CALLERS)]
            changed = {"cpus": 0.2}
            await asyncio.to_thread(deploy, light_settings(tmp_path, "2", **changed), LightReplica)
            await eventually(lambda: len(engine.nodes) == 2 and before.isdisjoint(engine.nodes))
            await eventually(lambda: load.answered >= LEAST)
            load.ended.set()
            await asyncio.gather(*callers)
            assert load.failures == []
            # Another number of replicas leaves the running ones alone.
            before = set(engine.nodes)
            await asyncio.to_thread(deploy, light_settings(tmp_path, "3", **changed), LightReplica)
            await eventually(lambda: len(engine.nodes) == 3)
            assert before < set(engine.nodes)


async def test_a_replica_without_room_on_its_disk_is_named(tmp_path: Path) -> None:
    with light_cluster(tmp_path, "0:1", "BrokenReplica") as settings:
        async with light_engine(settings) as engine:
            with pytest.raises(EngineUnavailable, match=r"could not start: OSError: .* No space left on device"):
                await engine.begin(light_request("one")).answer()
            with pytest.raises(EngineUnavailable, match="No space left on device"):
                await engine.check()
            await asyncio.to_thread(deploy, light_settings(tmp_path, "0:1"), LightReplica)
            await eventually(lambda: "No space left" not in engine.problem)
            answer: Any = await engine.begin(light_request("two")).answer()
            assert answer["pid"]
