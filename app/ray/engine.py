"""Engine port on engine replicas: requests go to a replica, and each replica places its adapters by itself."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import EngineRequest, Listener, SmokeResult
from app.engine.status import EngineState, EngineStatus, StatusReport, TenantQueue
from app.ray.calls import RayCall
from app.ray.error_words import engine_lost
from app.ray.hold import Hold
from app.ray.known_replicas import KnownReplicas
from app.ray.routes import Routes
from app.ray.snapshot import NO_REPORT, Snapshot, decode_snapshot, encode_numbers, merged, replica_status
from app.ray.transport import Deployed, NoReplicas, Phase, ReplicaLost, Transport
from app.ray.wire import Kind, WireError, decode_frame, decode_smoke, encode_key
from app.scheduling.admission_request import AdmissionRequest, Bounds
from app.scheduling.routing import NoReplica

logger = logging.getLogger(__name__)

#: Seconds between two reads of the replicas' state, and the limit of one read.
_EVERY_S, _READ_S = 1.0, 2.0
#: Seconds for which the cluster may be silent before waiting requests fail.
_SILENT_S = 10.0
_RETRY_S = 15
_NOT_STARTED = "The server is not connected to its engine replicas yet. Try again later."
_LEAVING = "The server is shutting down, and no engine replica is ready. Try again later."
_SILENT = "The cluster of the engine replicas does not answer."
_NONE = "No engine replica runs."


class RayEngine:
    """Implementation of :class:`app.engine.port.Engine` on the engine replicas of a fleet.

    - Each replica follows pins, preloads and deletions by itself, as an engine node. Here, a pin only raises the number
      of replicas that a version is sent to. Nothing of a version is ever in this process.
    - The state is the sum over the replicas, up to a second old, and the requests that wait here.
    - While no replica is ready, requests wait here (:class:`app.ray.hold.Hold`). One call at a time waits at Ray, which
      makes it start a replica.

    Args:
        connect: connects to the replicas.
        start_s: seconds within which a replica must be ready, at the start and for a waiting request.
        pin_copies: minimum number of replicas of a pinned version.
        bounds: bounds of the queue of requests that wait here.
        expected_start_s: expected seconds from a wake to a ready replica.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Transport]],
        *,
        start_s: float,
        pin_copies: int = 1,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        expected_start_s: float = 60.0,
    ) -> None:
        self._connect, self._start_s = connect, start_s
        self._known = KnownReplicas()
        self._routes = Routes(pin_copies=pin_copies, on_lost=self._lose)
        self._hold = Hold(bounds, expected_start_s=expected_start_s, longest_s=start_s, wake=self._wake)
        self._pins: dict[int, VersionKey] = {}
        self._transport: Transport | None = None
        self._listeners: list[Listener] = []
        self._wait_listeners: list[Callable[[float], None]] = []
        self._polling: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        #: Time at which sleeping replicas were woken, until one is ready.
        self._woken_at: float | None = None
        #: State of the deployment while no replica is ready; None if it is not known.
        self._deployed: Deployed | None = None
        self._reached_at = time.monotonic()
        self._problem = ""
        #: Why no replica can become ready; empty if one can.
        self._never = ""
        self._leaving = self._stopped = False

    # Life cycle.

    async def start(self) -> None:
        """Connect, and return once a replica is ready, or once a request would start one."""
        self._transport = await self._connect()
        ends = time.monotonic() + self._start_s
        await self._poll_once()
        while self.status().state not in {EngineState.READY, EngineState.ASLEEP}:
            if time.monotonic() > ends:
                raise EngineUnavailable(
                    f"No engine replica was ready within {self._start_s:.0f} s. {self._problem}".strip()
                    + " Look at them with `tenora engines status`."
                )
            await asyncio.sleep(_EVERY_S)
            await self._poll_once()
        self._polling = asyncio.create_task(self._poll())

    def leave(self) -> None:
        """Hold no more requests. Those that wait for a replica fail, as it would be ready too late."""
        self._leaving = True
        self._update()

    async def stop(self) -> None:
        self._stopped = True
        self._hold.refuse(EngineUnavailable(_LEAVING, retry_after=_RETRY_S))
        for task in filter(None, (self._polling, self._waking)):
            task.cancel()
            await asyncio.wait((task,))
        if self._transport:
            await self._transport.close()

    # Inference.

    def begin(self, request: EngineRequest) -> RayCall:
        return RayCall(request, self._connected, self._routes, self._hold)

    # Residency.

    async def smoke(self, key: VersionKey) -> SmokeResult:
        held = AdmissionRequest(f"smoke-{key.version_id}-{time.monotonic_ns()}", "", 1.0, None, (1,), 1)
        try:
            async with self._hold.turn(held):
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
        status = self._known.report.status
        state = status.state
        if state is not EngineState.READY and self._deployed and self._deployed.phase is Phase.ASLEEP:
            state = EngineState.ASLEEP
        return replace(
            status,
            state=state,
            # The pins of this process, not those of the replicas: each pin of the registry must reach the routes.
            pinned=frozenset(self._pins),
            waiting=status.waiting + self._hold.waiting,
            queued_tokens=status.queued_tokens + self._hold.queued_tokens,
        )

    def report(self) -> StatusReport:
        held = [
            TenantQueue(tenant.tenant, tenant.weight, 0, tenant.waiting, tenant.counter)
            for tenant in self._hold.snapshot().tenants
            if tenant.waiting
        ]
        report = self._known.report
        if held:
            report = merged([report, replace(NO_REPORT, tenants=tuple(held))])
        replicas = tuple(
            replica_status(snapshot, self._routes.counts_of(snapshot.node)) for snapshot in self._known.snapshots
        )
        # With the pins that the replicas hold.
        status = replace(self.status(), pinned=report.status.pinned)
        return replace(report, status=status, replicas=replicas)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def watch_waits(self, listener: Callable[[float], None]) -> None:
        self._wait_listeners.append(listener)

    async def check(self) -> None:
        """Check that requests are answered, now or once a replica is ready.

        Raises:
            EngineUnavailable
        """
        if self.status().state is EngineState.READY:
            return
        if self._deployed is None or self._deployed.phase not in {Phase.ASLEEP, Phase.STARTING}:
            raise EngineUnavailable(f"No engine replica is ready. {self._problem}".strip(), retry_after=5)

    @property
    def problem(self) -> str:
        """Problem of the last read of the replicas' state; empty if there was none."""
        return self._problem

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the replicas' HOMEs that answered lately."""
        return tuple(self._known.nodes)

    @property
    def _connected(self) -> Transport:
        if self._transport is None or self._stopped:
            raise EngineUnavailable(_NOT_STARTED, retry_after=5)
        return self._transport

    # State of the replicas.

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _EVERY_S)
            self._woken.clear()
            await self._poll_once()

    async def _poll_once(self) -> None:
        problem, began = "", time.monotonic()
        nodes = set(self._known.nodes)
        try:
            question = encode_numbers(self._known.numbers)
            answers = await self._connected.call_all("snapshot", question, timeout_s=_READ_S)
        except NoReplicas:
            problem, nodes = _NONE, set()
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; the next round may succeed
            problem = f"The engine replicas could not be asked ({type(error).__name__})."
        else:
            heard, problem = self._note_all(answers)
            # If all that Ray knows have answered, the others have ended, or end after their last requests.
            nodes = heard if heard and time.monotonic() - began < _READ_S else nodes | heard
        self._known.keep(nodes, time.monotonic())
        if self._known.report.status.state is not EngineState.READY:
            self._never = await self._follow()
        self._update()
        problem = self._never or problem
        if problem and problem != self._problem:
            logger.log(logging.INFO if self.status().state is EngineState.ASLEEP else logging.WARNING, "%s", problem)
        self._problem = problem

    def _note_all(self, answers: list[bytes]) -> tuple[set[str], str]:
        """Keep snapshots. Return their nodes, and the problem with one that could not be read."""
        heard, problem = set(), ""
        for data in answers:
            try:
                snapshot = decode_snapshot(data)
            except WireError as error:
                problem = str(error)
            else:
                heard.add(snapshot.node)
                self._note(snapshot)
        return heard, problem

    def _note(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, and pass on its events."""
        for event in snapshot.events:
            for listener in self._listeners:
                listener(event)
        for seconds in snapshot.waits:
            for wait_listener in self._wait_listeners:
                wait_listener(seconds)
        self._known.note(snapshot, time.monotonic())
        self._routes.report(snapshot.routing)

    async def _follow(self) -> str:
        """Ask for the state of the deployment. Return why its replicas cannot become ready, if so."""
        try:
            self._deployed = await self._connected.deployed()
        except ReplicaLost:
            if time.monotonic() - self._reached_at < _SILENT_S:
                return ""
            self._deployed = None
            return _SILENT
        self._reached_at = time.monotonic()
        if self._deployed.phase is Phase.ABSENT:
            return "No engine replicas are deployed. Deploy them with `tenora engines up`."
        if self._deployed.phase is Phase.FAILED:
            return f"The engine replicas cannot start. {self._deployed.reason} Then run `tenora engines up` again."
        return ""

    def _update(self) -> None:
        """Open or shut the hold by the state of the replicas."""
        if self._stopped:
            return
        self._routes.keep(self._known.nodes)
        now, status = time.monotonic(), self._known.report.status
        if status.state is EngineState.READY:
            if self._woken_at is not None:
                self._hold.expected_start_s = now - self._woken_at
            self._reached_at, self._woken_at, self._never = now, None, ""
            # If the replicas are lost, others start.
            self._deployed = Deployed(Phase.STARTING)
            self._hold.open(status.window)
            return
        if not self._known.nodes:
            # Without a replica, Ray would keep these requests in a queue in order of arrival.
            self._routes.call_back()
        if self._leaving:
            self._hold.refuse(EngineUnavailable(_LEAVING, retry_after=_RETRY_S))
        elif self._never:
            self._hold.refuse(EngineUnavailable(self._never, retry_after=_RETRY_S))
        else:
            self._hold.shut()
            if self._hold.waiting:
                self._wake()

    def _lose(self, node_id: str) -> None:
        """Forget a replica that broke a request, until its next report."""
        self._known.keep(self._known.nodes - {node_id}, time.monotonic())
        self._update()

    def _wake(self) -> None:
        """Make Ray start a replica, if no such call waits yet."""
        if self._stopped or self._transport is None or (self._waking and not self._waking.done()):
            return
        if self._woken_at is None and self._deployed and self._deployed.phase is Phase.ASLEEP:
            self._woken_at = time.monotonic()
        self._waking = asyncio.create_task(self._wait_for_replica(self._transport))

    async def _wait_for_replica(self, transport: Transport) -> None:
        with suppress(NoReplicas, ReplicaLost):
            await transport.wake()
        self._woken.set()
        # A replica that runs but is not ready answers such calls at once.
        await asyncio.sleep(_EVERY_S)

    def _note_pins(self) -> None:
        self._routes.pin([key.digest for key in self._pins.values()])
