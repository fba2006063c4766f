"""Engine port on vLLM in this process: a supervisor for engine sessions, and calls with leases for requests."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.request_lease import RequestLease
from app.engine.lifecycle.sequence_leases import SequenceLeases
from app.engine.lifecycle.status_report import engine_status, status_report
from app.engine.lifecycle.supervisor import Supervisor
from app.engine.port import Answer, EngineEvent, EngineRequest, Listener, Outcome, SmokeResult
from app.engine.residency.cost_estimate import admission_request
from app.engine.residency.pinning import DesiredAdapters
from app.engine.status import EngineStatus, KernelChecks, StatusReport
from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.kernel_report import BrokenKernels
from app.engine.vllm.output_log import OutputLog
from app.engine.vllm.platform import device_name, on_cpu
from app.observability.tracing import record_load
from app.settings import Settings

_CHECK_TIMEOUT_S = 5.0


class VllmEngine:
    """Implementation of :class:`app.engine.port.Engine` on one vLLM engine."""

    def __init__(
        self, settings: Settings, *, base: Path, base_name: str, context: int, cache: DiskCache, slots: int
    ) -> None:
        self._arguments = engine_arguments(
            settings, base, served_name=base_name, cpu=on_cpu(), slots=slots, context=context
        )
        self._settings, self._slots, self._device = settings, slots, device_name()
        self._base_name = base_name
        self._cache = cache
        self._log, self._desired = OutputLog(), DesiredAdapters()
        self._kernels = KernelChecks()
        self._listeners: list[Listener] = []
        self._wait_listeners: list[Callable[[float], None]] = []
        self._supervisor = Supervisor(self._launch, backoff_s=settings.engine.restart_backoff_s)

    # Life cycle.

    async def start(self) -> None:
        await self._supervisor.start()

    def leave(self) -> None:
        self._supervisor.leave()

    async def stop(self) -> None:
        await self._supervisor.stop()

    # Inference.

    def begin(self, request: EngineRequest) -> "VllmCall":
        return VllmCall(request, self._admit)

    # Residency.

    async def smoke(self, key: VersionKey) -> SmokeResult:
        return await self._supervisor.session.smoke.run(key)

    def prefetch(self, key: VersionKey) -> None:
        if session := self._supervisor.current:
            session.loader.prefetch(key)

    async def preload(self, key: VersionKey) -> None:
        self._forget_namesake(self._supervisor.session, key)
        await self._supervisor.session.loader.load(key)
        self._desired.preloads[key.version_id] = key

    async def pin(self, key: VersionKey) -> None:
        self._forget_namesake(self._supervisor.session, key)
        await self._supervisor.session.pins.pin(key)
        self._desired.pins[key.version_id] = key

    async def unpin(self, version_id: int) -> None:
        self._desired.pins.pop(version_id, None)
        if session := self._supervisor.current:
            session.pins.unpin(version_id)

    async def unload(self, version_id: int) -> None:
        self._desired.forget(version_id)
        if session := self._supervisor.current:
            # A new session may be loading the version right now. A load that ends after this call would stay.
            await session.established()
            await self.unpin(version_id)
            await session.loader.unload(version_id)

    async def holds(self, version_id: int) -> bool:
        session = self._supervisor.session
        return session.loader.holds(version_id) or version_id in await session.instance.adapters()

    # Status.

    def status(self) -> EngineStatus:
        return engine_status(
            self._supervisor.current,
            self._cache,
            state=self._supervisor.state,
            restarts=self._supervisor.restarts,
            hangs=self._supervisor.hangs,
            pinned=frozenset(self._desired.pins),
            slots=self._slots,
            host_bytes=self._settings.engine.host_bytes,
            kernels=self._kernels,
            device=self._device,
        )

    def report(self) -> StatusReport:
        return status_report(self.status(), self._supervisor.current)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        self._wait_listeners.append(listener)

    async def check(self) -> None:
        await self._supervisor.session.instance.check(_CHECK_TIMEOUT_S)

    async def _admit(self, request: EngineRequest) -> RequestLease:
        """Wait until a request may run in the current session.

        Raises: as :meth:`app.engine.lifecycle.sequence_leases.SequenceLeases.begin`.
        """
        session = self._supervisor.session
        admission, arrived_at = admission_request(request), time.monotonic()
        if request.adapter:
            self._forget_namesake(session, request.adapter)
        sequences = SequenceLeases(
            request, admission, instance=session.instance, loader=session.loader, queue=session.queue
        )
        load = (await sequences.begin()).phases
        for listener in self._wait_listeners:
            listener(time.monotonic() - arrived_at)
        if load:
            record_load(arrived_at, load)
        return RequestLease(request, session, self._log, sequences, arrived_at=arrived_at, load=load)

    def _forget_namesake(self, session: EngineSession, key: VersionKey) -> None:
        """Drop a pin or preload of other bytes under the version's id, as after a database restore."""
        held = (self._desired.pins.get(key.version_id), self._desired.preloads.get(key.version_id))
        if any(other is not None and other.digest != key.digest for other in held):
            self._desired.forget(key.version_id)
            session.pins.unpin(key.version_id)

    async def _launch(self) -> EngineSession:
        try:
            session = await EngineSession.launch(
                self._arguments,
                self._cache,
                self._settings,
                base_name=self._base_name,
                slots=self._slots,
                log=self._log,
                notify=self._notify,
                begin=self.begin,
                desired=self._desired,
            )
        except BrokenKernels:
            self._kernels = replace(self._kernels, failures=self._kernels.failures + 1)
            raise
        self._kernels = replace(self._kernels, passed_at=time.time(), seconds=session.instance.kernels.seconds)
        return session

    def _notify(self, event: EngineEvent) -> None:
        for listener in self._listeners:
            listener(event)


class VllmCall:
    """Implementation of :class:`app.engine.port.EngineCall`."""

    def __init__(self, request: EngineRequest, admit: Callable[[EngineRequest], Awaitable[RequestLease]]) -> None:
        self.request = request
        self._admit = admit
        self._lease: RequestLease | None = None

    @property
    def outcome(self) -> Outcome:
        return self._lease.outcome if self._lease else Outcome()

    async def answer(self) -> Answer:
        self._lease = await self._admit(self.request)
        return await self._lease.answer()
