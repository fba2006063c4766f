"""Cluster with light replicas: the real wire and the real Ray, with an engine that only counts.

    python -m tests.support.light_fleet HOME REPLICAS

REPLICAS is a number or MIN:MAX. The environment may set more of ``TENORA_RAY__*``. A request's body has the number of
events (``events``) and the seconds between two of them (``every_s``), or the seconds of a whole answer (``takes_s``).
"""

import asyncio
import logging.config
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from app.engine.port import AnswerEvent, EngineRequest, Outcome, TokenUsage
from app.engine.status import EngineState
from app.observability.logs import log_config
from app.ray.answering import Answering
from app.ray.preference import RoutingStats
from app.ray.replica import START_FAILED
from app.ray.scaling import LOAD
from app.ray.snapshot import NO_REPORT, Snapshot, encode_snapshot
from app.ray.state import replica_report
from app.ray.wire import WIRE_VERSION
from app.services.deletion.version_guard import VersionGuard
from app.settings import LogSettings, Settings
from tests.support.fleet import OpenGuard


class CountingCall:
    """Call that answers with numbers."""

    def __init__(self, request: EngineRequest) -> None:
        self.request, self.told, self.ended = request, 0, False

    @property
    def outcome(self) -> Outcome:
        return Outcome(TokenUsage(1, 0, self.told, ttft_s=None) if self.ended else None)

    async def answer(self):
        if self.request.body.get("fault"):
            raise ValueError(self.request.body["fault"])
        if self.request.body.get("stream"):
            return self._events()
        await asyncio.sleep(self.request.body.get("takes_s", 0))
        self.ended, self.told = True, 1
        return {"pid": os.getpid()}

    async def _events(self) -> AsyncGenerator[AnswerEvent]:
        try:
            for number in range(self.request.body["events"]):
                self.told += 1
                yield AnswerEvent(f"data: {number} {os.getpid()} {self.request.body.get('says', '')}\n\n", 1)
                await asyncio.sleep(self.request.body["every_s"])
            yield AnswerEvent("data: [DONE]\n\n", 0)
        finally:
            self.ended = True


class CountingEngine:
    def begin(self, request: EngineRequest) -> CountingCall:
        return CountingCall(request)


class LightReplica:
    """Replica with the methods of :class:`app.ray.replica.EngineReplica`, without an engine."""

    def __init__(self) -> None:
        logging.config.dictConfig(log_config(LogSettings(), "INFO"))
        guard = cast("VersionGuard", OpenGuard())
        self._answering = Answering(CountingEngine(), guard, lambda _key, _tenant: None, node=f"node-{os.getpid()}")

    async def answer(self, request: bytes) -> AsyncGenerator[bytes]:
        async with aclosing(self._answering.frames(request)) as frames:
            async for frame in frames:
                yield frame

    async def outcome(self, request_id: bytes) -> bytes:
        return await self._answering.outcome(request_id.decode())

    async def record_routing_stats(self) -> RoutingStats:
        return {"node": f"node-{os.getpid()}", "slots": 4}

    async def snapshot(self, _numbers: bytes) -> bytes:
        pid, running = os.getpid(), self._answering.running
        status = replace(NO_REPORT.status, state=EngineState.READY, slots=4, window=8, running=running)
        report = replace(NO_REPORT, status=status)
        routing = replica_report(f"node-{pid}", report)
        return encode_snapshot(Snapshot(WIRE_VERSION, f"process-{pid}", pid, report, routing))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {LOAD: self._answering.load.read()}

    async def running(self, _argument: bytes) -> bytes:
        return f"{os.getpid()} {self._answering.running}".encode()


def build(arguments: dict[str, Any]) -> Any:
    """Build the application as :func:`app.ray.application.build` does."""
    from app.ray.application import application, with_arguments

    return application(with_arguments(Settings(), arguments), LightReplica)


class BrokenReplica(LightReplica):
    """Replica that cannot start."""

    def __init__(self) -> None:
        raise RuntimeError(f"{START_FAILED}: OSError: [Errno 28] No space left on device")


def light_settings(home: Path, replicas: str, **ray: Any) -> Settings:
    least, _, most = replicas.partition(":")
    return Settings(home=home, ray={"min_replicas": least, "max_replicas": most or least, "cpus": 0.1} | ray)


def main(home: Path, replicas: str, kind: str = "LightReplica") -> None:
    from app.ray.cluster import head

    settings = light_settings(home, replicas)
    ended = threading.Event()
    with head(settings):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        from app.ray.application import deploy

        deploy(settings, globals()[kind])
        (home / "deployed").touch()
        ended.wait()


if __name__ == "__main__":
    from tests.support import light_fleet

    # Not this module's own main: Ray pickles the class by the name of its module.
    light_fleet.main(Path(sys.argv[1]), *sys.argv[2:])
