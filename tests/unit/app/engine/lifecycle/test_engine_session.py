"""Engine session: its end releases everything, whatever fails."""

import asyncio
from typing import Any, cast

import pytest

from adapters.cache import DiskCache
from app.domain.errors import EngineUnavailable
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.smoke_check import SmokeCheck
from app.engine.vllm.instance import EngineInstance
from app.scheduling.admission_request import AdmissionRequest
from app.settings import Settings


class Instance:
    """Fake engine with one place, whose processes cannot be ended."""

    window, step_tokens = 1, 100

    def __init__(self) -> None:
        self.dead = asyncio.Event()

    async def adapters(self) -> frozenset[int]:
        return frozenset()

    async def shutdown(self) -> None:
        raise RuntimeError("no such process")


def request(request_id: str) -> AdmissionRequest:
    return AdmissionRequest(request_id, "retail", 1.0, None, (1,), 1)


async def test_waiting_requests_end_though_the_engine_cannot_be_ended(cache: DiskCache) -> None:
    instance, smoke = cast("EngineInstance", Instance()), cast("SmokeCheck", None)
    session = EngineSession(instance, cache, Settings(), slots=1, notify=_ignore, smoke=smoke)
    await session.loader.enter(request("running"))
    waiting = asyncio.ensure_future(session.loader.enter(request("waiting")))
    while not session.queue.waiting:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="no such process"):
        await session.end()
    async with asyncio.timeout(10):
        with pytest.raises(EngineUnavailable):
            await waiting


def _ignore(_event: Any) -> None:
    """Discard an event."""
