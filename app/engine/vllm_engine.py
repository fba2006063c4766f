"""Engine port on vLLM in this process: a supervisor for engine sessions, and leases for requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cachetools import FIFOCache

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from app.domain.load_phases import LoadPhases
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.request_lease import LeasedEvents, RequestLease
from app.engine.lifecycle.sequence_turns import Sequences
from app.engine.lifecycle.status_report import overview
from app.engine.lifecycle.supervisor import Supervisor
from app.engine.port import (
    Answer,
    EngineEvent,
    EngineRequest,
    EngineStats,
    Listener,
    MostTokens,
    SmokeResult,
    TokenUsage,
)
from app.engine.residency.adapter_loader import LoadedLease
from app.engine.residency.cost_estimate import ticket
from app.engine.residency.pinning import DesiredAdapters
from app.engine.status import EngineOverview, EngineState, KernelChecks
from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.kernel_report import BrokenKernels
from app.engine.vllm.output_log import OutputLog, Usage
from app.engine.vllm.platform import on_cpu
from app.engine.vllm.sse import Events
from app.observability.tracing import record_load
from app.settings import Settings

_CHECK_TIMEOUT_S = 5.0
#: Requests whose unclaimed load phases and usage are kept.
_REMEMBERED = 10_000


class VllmEngine:
    """Implementation of :class:`app.engine.port.Engine` on one vLLM engine."""

    def __init__(self, settings: Settings, *, base: Path, base_name: str, cache: DiskCache, slots: int) -> None:
        self._arguments = engine_arguments(settings, base, served_name=base_name, cpu=on_cpu(), slots=slots)
        self._settings, self._slots = settings, slots
        self._base_name = base_name
        self._cache = cache
        self._special_token_ids: frozenset[int] = frozenset()
        self._log, self._standing = OutputLog(), DesiredAdapters()
        self._kernels = KernelChecks()
        #: Values by request id, kept until they are popped.
        self._loads = FIFOCache[str, LoadPhases](_REMEMBERED)
        self._usages = FIFOCache[str, TokenUsage](_REMEMBERED)
        self._listeners: list[Listener] = []
        self._wait_listeners: list[Callable[[float], None]] = []
        self._supervisor = Supervisor(self._launch, backoff_s=settings.engine.restart_backoff_s)

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special_token_ids

    def stats(self) -> EngineStats:
        restarts, hangs = self._supervisor.restarts, self._supervisor.hangs
        if (life := self._supervisor.current) is None:
            return EngineStats(running=0, waiting=0, resident=0, restarts=restarts, hangs=hangs)
        return EngineStats(life.instance.running, life.queue.waiting, len(life.loader.slots), restarts, hangs)

    def write_statistics(self) -> None:
        if life := self._supervisor.current:
            life.instance.write_statistics()

    def overview(self) -> EngineOverview:
        return overview(
            self._supervisor.current,
            self._cache,
            state=self.state,
            restarts=self._supervisor.restarts,
            hangs=self._supervisor.hangs,
            slots=self._slots,
            host_bytes=self._settings.engine.host_bytes,
            kernels=self._kernels,
        )

    def take_load(self, request_id: str) -> LoadPhases | None:
        return self._loads.pop(request_id, None)

    async def most_tokens(self, request: EngineRequest) -> MostTokens:
        return await self._supervisor.life.instance.most_tokens(request)

    def take_usage(self, request_id: str) -> TokenUsage | None:
        return self._usages.pop(request_id, None)

    def prefetch(self, key: VersionKey) -> None:
        if life := self._supervisor.current:
            life.loader.prefetch(key)

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return self._supervisor.life.instance.token_texts(token_ids)

    async def start(self) -> None:
        await self._supervisor.start()

    def leave(self) -> None:
        self._supervisor.leave()

    async def stop(self) -> None:
        await self._supervisor.stop()

    async def check(self) -> None:
        await self._supervisor.life.instance.check(_CHECK_TIMEOUT_S)

    async def smoke(self, key: VersionKey) -> SmokeResult:
        return await self._supervisor.life.smoke.run(key)

    def was_finite(self, request_id: str) -> bool:
        return self._log.was_finite(request_id)

    def _forget_namesake(self, life: EngineSession, key: VersionKey) -> None:
        """Drop a pin or preload of other bytes under the version's id, as after a database restore."""
        held = (self._standing.pins.get(key.version_id), self._standing.preloads.get(key.version_id))
        if any(other is not None and other.digest != key.digest for other in held):
            self._standing.forget(key.version_id)
            life.pins.unpin(key.version_id)

    async def preload(self, key: VersionKey) -> None:
        self._forget_namesake(self._supervisor.life, key)
        await self._supervisor.life.loader.load(key)
        self._standing.preloads[key.version_id] = key

    async def pin(self, key: VersionKey) -> None:
        self._forget_namesake(self._supervisor.life, key)
        await self._supervisor.life.pins.pin(key)
        self._standing.pins[key.version_id] = key

    async def unpin(self, version_id: int) -> None:
        self._standing.pins.pop(version_id, None)
        if life := self._supervisor.current:
            life.pins.unpin(version_id)

    @property
    def pinned(self) -> frozenset[int]:
        return frozenset(self._standing.pins)

    async def holds(self, version_id: int) -> bool:
        life = self._supervisor.life
        return life.loader.holds(version_id) or version_id in await life.instance.adapters()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        self._wait_listeners.append(listener)

    async def unload(self, version_id: int) -> None:
        self._standing.forget(version_id)
        if life := self._supervisor.current:
            # A new session may be loading the version right now. A load that ends after this call would stay.
            await life.begun()
            await self.unpin(version_id)
            await life.loader.unload(version_id)

    async def answer(self, request: EngineRequest) -> Answer:
        life = self._supervisor.life
        admission, came = ticket(request), time.monotonic()
        if request.adapter:
            self._forget_namesake(life, request.adapter)
        sequences = Sequences(request, admission, instance=life.instance, loader=life.loader, queue=life.queue)
        lease = await sequences.begin()
        for listener in self._wait_listeners:
            listener(time.monotonic() - came)
        if lease.phases:
            self._loads[request.request_id] = lease.phases
            record_load(came, lease.phases)
        held = RequestLease(life, request, sequences, lambda slot_s: self._used(request, lease, came, slot_s))
        # Release at the end in the engine: a client that reads slowly must not hold a slot.
        sequences.all_ended = held.release
        self._log.follow(request.request_id, sequences)
        try:
            answer = await life.instance.answer(request, tag=life.queue.tag(request.request_id))
        except BaseException:
            await held.abort()
            raise
        if isinstance(answer, Events):
            return LeasedEvents(answer, held)
        held.release()
        return answer

    async def _try(self, request: EngineRequest) -> Answer:
        """Answer an internal request, and discard its load phases and usage, which no caller takes."""
        try:
            return await self.answer(request)
        finally:
            self.take_load(request.request_id)
            self.take_usage(request.request_id)

    def _used(self, request: EngineRequest, lease: LoadedLease, came: float, slot_s: float) -> Usage:
        """Take a request's usage from the log at its end, and keep it for :meth:`take_usage`."""
        usage = self._log.take(request.request_id)
        if usage is None or usage.first_at is None:
            return Usage()
        token_usage = TokenUsage(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            ttft_s=usage.first_at - came,
            slot_s=slot_s,
            load_s=lease.phases.total_s if lease.phases else None,
        )
        self._usages[request.request_id] = token_usage
        return usage

    async def _launch(self) -> EngineSession:
        try:
            life = await EngineSession.begin(
                self._arguments,
                self._cache,
                self._settings,
                base_name=self._base_name,
                slots=self._slots,
                log=self._log,
                notify=self._tell,
                answer=self._try,
                standing=self._standing,
            )
        except BrokenKernels:
            self._kernels = replace(self._kernels, failures=self._kernels.failures + 1)
            raise
        self._kernels = replace(self._kernels, passed_at=time.time(), seconds=life.instance.kernels.seconds)
        self._special_token_ids = life.instance.special_token_ids
        return life

    def _tell(self, event: EngineEvent) -> None:
        for listener in self._listeners:
            listener(event)
