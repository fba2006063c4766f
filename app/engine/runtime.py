"""The engine port on vLLM, in this process: supervision around lives, leases around requests."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from app.engine.answers import Events
from app.engine.arguments import engine_arguments
from app.engine.base import Answer, EngineEvent, EngineRequest, EngineState, EngineStats, Listener, SmokeResult
from app.engine.finite import NanLog
from app.engine.instance import EngineInstance, on_cpu
from app.engine.loading import AdapterLoader, LoadedLease
from app.engine.pinning import Pins, Standing
from app.engine.smoke import SmokeCheck
from app.engine.supervision import Supervisor
from app.errors import EngineUnavailable
from app.settings import Settings

_CHECK_TIMEOUT_S = 5.0


class EngineLife:
    """A running engine together with the adapters that are loaded in it."""

    def __init__(self, instance: EngineInstance, loader: AdapterLoader, *, slots: int, smoke: SmokeCheck) -> None:
        self.instance, self.loader, self.smoke = instance, loader, smoke
        self.pins = Pins(instance, loader, slots=slots)
        self.dead = instance.dead
        self._beginning: asyncio.Task[None] | None = None

    def begin(self, standing: Standing) -> None:
        """Start to load what every life holds; the engine answers meanwhile."""
        self._beginning = asyncio.create_task(standing.establish(self.loader, self.pins))

    async def begun(self) -> None:
        """Return when that has ended."""
        if self._beginning:
            await asyncio.wait({self._beginning})

    async def end(self) -> None:
        if self._beginning:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self.instance.shutdown()
        await self.loader.close()


class VllmEngine:
    """:class:`app.engine.base.Engine` on one vLLM engine."""

    def __init__(self, settings: Settings, *, base: Path, base_name: str, cache: DiskCache) -> None:
        self._cpu = on_cpu()
        self._arguments = engine_arguments(settings, base, served_name=base_name, cpu=self._cpu)
        self._settings = settings.engine
        self._base_name = base_name
        self._cache = cache
        self._special_token_ids: frozenset[int] = frozenset()
        self._nans, self._standing = NanLog(), Standing()
        self._listeners: list[Listener] = []
        self._supervisor = Supervisor(self._launch, backoff_s=settings.engine.restart_backoff_s)

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special_token_ids

    def stats(self) -> EngineStats:
        restarts = self._supervisor.restarts
        if (life := self._supervisor.current) is None:
            return EngineStats(running=0, waiting=0, resident=0, restarts=restarts)
        return EngineStats(life.instance.running, life.loader.waiting, life.loader.resident, restarts)

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return self._supervisor.life.instance.token_texts(token_ids)

    async def start(self) -> None:
        await self._supervisor.start()

    async def stop(self) -> None:
        await self._supervisor.stop()

    async def check(self) -> None:
        await self._supervisor.life.instance.check(_CHECK_TIMEOUT_S)

    async def smoke(self, key: VersionKey) -> SmokeResult:
        return await self._supervisor.life.smoke.run(key)

    def was_finite(self, request_id: str) -> bool:
        return self._nans.was_finite(request_id)

    async def preload(self, key: VersionKey) -> None:
        await self._supervisor.life.loader.load(key)
        self._standing.preloads[key.version_id] = key

    async def pin(self, key: VersionKey) -> None:
        await self._supervisor.life.pins.pin(key)
        self._standing.pins[key.version_id] = key

    async def unpin(self, version_id: int) -> None:
        self._standing.pins.pop(version_id, None)
        if life := self._supervisor.current:
            # With an engine that dies just now the pin is gone too.
            with contextlib.suppress(EngineUnavailable):
                await life.pins.unpin(version_id)

    @property
    def pinned(self) -> frozenset[int]:
        return frozenset(self._standing.pins)

    async def holds(self, version_id: int) -> bool:
        life = self._supervisor.life
        return life.loader.holds(version_id) or version_id in await life.instance.adapters()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def unload(self, version_id: int) -> None:
        self._standing.forget(version_id)
        if life := self._supervisor.current:
            # A new life may be loading it just now, and what is loaded after this call would stay.
            await life.begun()
            await self.unpin(version_id)
            await life.loader.unload(version_id)

    async def answer(self, request: EngineRequest) -> Answer:
        life = self._supervisor.life
        lease = await life.loader.lease(request.request_id, request.adapter) if request.adapter else None
        try:
            answer = await life.instance.answer(request)
        except BaseException:
            await _finish(life, request, lease)
            raise
        if isinstance(answer, Events):
            return LeasedEvents(answer, life, request, lease)
        if lease:
            lease.release()
        return answer

    async def _launch(self) -> EngineLife:
        instance = await EngineInstance.launch(
            self._arguments, base_name=self._base_name, reserve_zero_slot=self._cpu, nans=self._nans
        )
        self._special_token_ids = instance.special_token_ids
        slots = self._settings.max_loras
        loader = AdapterLoader(
            instance,
            self._cache,
            slots=slots,
            places=max(self._settings.max_cpu_loras, slots),
            notify=self._tell,
        )
        smoke = SmokeCheck(self.answer, self.was_finite, base_name=self._base_name)
        life = EngineLife(instance, loader, slots=slots, smoke=smoke)
        life.begin(self._standing)
        return life

    def _tell(self, event: EngineEvent) -> None:
        for listener in self._listeners:
            listener(event)


class LeasedEvents:
    """A stream that holds its adapter's lease until it ends or is closed, started or not.

    (The body of a generator function that was never started never reaches its ``finally``.)
    """

    def __init__(self, events: Events, life: EngineLife, request: EngineRequest, lease: LoadedLease | None) -> None:
        self._events, self._life, self._request, self._lease = events, life, request, lease
        self._open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if not self._open:
            raise StopAsyncIteration
        try:
            event = await self._events.next()
        except BaseException:
            await self.aclose()
            raise
        if event is None:
            self._open = False
            if self._lease:
                self._lease.release()
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            await _finish(self._life, self._request, self._lease, self._events)


async def _finish(
    life: EngineLife, request: EngineRequest, lease: LoadedLease | None, events: Events | None = None
) -> None:
    """Abort what still runs, and only then give the slot away: the engine must never see one adapter too many."""
    try:
        await asyncio.shield(life.instance.abort(request))
        if events:
            await events.aclose()
    finally:
        if lease:
            lease.release()
