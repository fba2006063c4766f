"""Engine port on engine replicas: requests go to a replica, and each replica places its adapters by itself."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import EngineRequest, Listener, SmokeResult
from app.engine.status import EngineState, EngineStatus, StatusReport
from app.ray.calls import RayCall
from app.ray.error_words import engine_lost
from app.ray.routes import Routes
from app.ray.snapshot import Snapshot, decode_snapshot, encode_numbers, merged, replica_status
from app.ray.transport import NoReplicas, ReplicaLost, Transport
from app.ray.wire import Kind, WireError, decode_frame, decode_smoke, encode_key
from app.scheduling.routing import NoReplica

logger = logging.getLogger(__name__)

#: Seconds between two reads of the replicas' state, and the age at which a state is dropped.
_EVERY_S, _STALE_S = 1.0, 5.0
_NOT_STARTED = "The server is not connected to its engine replicas yet. Try again later."


@dataclass(slots=True)
class _Known:
    """Last snapshot of a replica."""

    snapshot: Snapshot
    heard_at: float


class RayEngine:
    """Implementation of :class:`app.engine.port.Engine` on the engine replicas of a fleet.

    - Each replica follows pins, preloads and deletions by itself, as an engine node. Here, a pin only raises the number
      of replicas that a version is sent to. Nothing of a version is ever in this process.
    - The state is the sum over the replicas, up to a second old.

    Args:
        connect: connects to the replicas.
        start_s: seconds within which a replica must be ready at the start.
        pin_copies: minimum number of replicas of a pinned version.
    """

    def __init__(self, connect: Callable[[], Awaitable[Transport]], *, start_s: float, pin_copies: int = 1) -> None:
        self._connect, self._start_s = connect, start_s
        self._routes = Routes(pin_copies=pin_copies)
        self._pins: dict[int, VersionKey] = {}
        self._transport: Transport | None = None
        self._known: dict[str, _Known] = {}
        self._routes.keep(self._known.keys())
        self._report = merged(())
        self._listeners: list[Listener] = []
        self._wait_listeners: list[Callable[[float], None]] = []
        self._polling: asyncio.Task[None] | None = None
        self._problem = ""
        self._stopped = False

    # Life cycle.

    async def start(self) -> None:
        self._transport = await self._connect()
        ends = time.monotonic() + self._start_s
        await self._poll_once()
        while self.status().state is not EngineState.READY:
            if time.monotonic() > ends:
                raise EngineUnavailable(
                    f"No engine replica was ready within {self._start_s:.0f} s. {self._problem}".strip()
                    + " Look at them with `tenora engines status`."
                )
            await asyncio.sleep(_EVERY_S)
            await self._poll_once()
        self._polling = asyncio.create_task(self._poll())

    def leave(self) -> None:
        """Do nothing: this process starts no engine."""

    async def stop(self) -> None:
        self._stopped = True
        if self._polling:
            self._polling.cancel()
            await asyncio.wait((self._polling,))
        if self._transport:
            await self._transport.close()

    # Inference.

    def begin(self, request: EngineRequest) -> RayCall:
        return RayCall(request, self._connected, self._routes)

    # Residency.

    async def smoke(self, key: VersionKey) -> SmokeResult:
        try:
            with self._routes.begin(key.digest) as attempt:
                data = await self._connected.call("smoke", encode_key(key), target=attempt.target)
            frame = decode_frame(data)
            if frame.kind is Kind.ERROR:
                raise frame.value
            return decode_smoke(frame)
        except (WireError, NoReplica) as error:
            raise EngineUnavailable(str(error)) from None
        except (ReplicaLost, NoReplicas):
            raise engine_lost() from None

    def prefetch(self, key: VersionKey) -> None:
        """Do nothing: the replica that gets a tenant's requests prefetches for it."""

    async def preload(self, key: VersionKey) -> None:
        """Do nothing: each replica loads the preload list."""

    async def pin(self, key: VersionKey) -> None:
        """Send the version to at least ``pin_copies`` replicas. Each replica follows the registry's pins."""
        self._pins[key.version_id] = key
        self._note_pins()

    async def unpin(self, version_id: int) -> None:
        if self._pins.pop(version_id, None):
            self._note_pins()

    async def unload(self, version_id: int) -> None:
        """Forget a pin: each replica confirms a deletion as a node."""
        await self.unpin(version_id)

    async def holds(self, version_id: int) -> bool:
        """Return False: nothing of a version is in this process."""
        del version_id
        return False

    # Status.

    def status(self) -> EngineStatus:
        # The pins of this process, not those of the replicas: each pin of the registry must reach the routes.
        return replace(self._report.status, pinned=frozenset(self._pins))

    def report(self) -> StatusReport:
        # With the pins that the replicas hold.
        known = sorted(self._known.items())
        replicas = tuple(replica_status(one.snapshot, self._routes.counts_of(node)) for node, one in known)
        return replace(self._report, replicas=replicas)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        self._wait_listeners.append(listener)

    async def check(self) -> None:
        if self.status().state is not EngineState.READY:
            raise EngineUnavailable(f"No engine replica is ready. {self._problem}".strip(), retry_after=5)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the replicas' HOMEs that answered lately."""
        return tuple(self._known)

    @property
    def _connected(self) -> Transport:
        if self._transport is None or self._stopped:
            raise EngineUnavailable(_NOT_STARTED, retry_after=5)
        return self._transport

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._poll_once()

    async def _poll_once(self) -> None:
        problem = ""
        try:
            numbers = {known.snapshot.process: known.snapshot.number for known in self._known.values()}
            for data in await self._connected.call_all("snapshot", encode_numbers(numbers), timeout_s=_STALE_S):
                try:
                    self._note(decode_snapshot(data))
                except WireError as error:
                    problem = str(error)
        except NoReplicas:
            problem = "No engine replica runs."
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; the next round may succeed
            problem = f"The engine replicas could not be asked ({type(error).__name__})."
        if problem and problem != self._problem:
            logger.warning("%s", problem)
        self._problem = problem
        now = time.monotonic()
        self._known = {node: known for node, known in self._known.items() if now - known.heard_at < _STALE_S}
        self._report = merged([known.snapshot.report for known in self._known.values()])

    def _note(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and pass on its events."""
        for event in snapshot.events:
            for listener in self._listeners:
                listener(event)
        for seconds in snapshot.waits:
            for wait_listener in self._wait_listeners:
                wait_listener(seconds)
        self._known[snapshot.node] = _Known(snapshot, time.monotonic())
        self._routes.report(snapshot.routing)

    def _note_pins(self) -> None:
        self._routes.pin([key.digest for key in self._pins.values()])
