"""Adapter loading for requests: stage into host memory while queueing, then copy into a slot, under one lease."""

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.residency import Admission, Residency
from app.domain.errors import AdapterLoadFailed, EngineUnavailable
from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent, Listener
from app.engine.residency.admission_queue import AdmissionQueue, LaterSequences, before_deadline
from app.engine.residency.host_tier import HostTier
from app.engine.residency.transfer import Transfers
from app.observability.tracing import stage
from app.scheduling.admission_request import AdmissionRequest

logger = logging.getLogger(__name__)

#: Digests to keep before those of versions that are not held are dropped.
_MOST_DIGESTS = 10_000
_DISPLACE_POLL_S = 0.02


class LoadedLease:
    """Right of one sequence to run, with its version in a slot.

    Attributes:
        phases: load phases of its request; None if its version had a slot on arrival, or it needs none.
    """

    def __init__(self, release: Callable[[int | None, int | None], None], phases: LoadPhases | None = None) -> None:
        self.phases = phases
        self._release: Callable[[int | None, int | None], None] | None = release

    def release(self, *, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Release the slot and the place in the engine, with true token counts if they are known. Idempotent."""
        release, self._release = self._release, None
        if release:
            release(prompt_tokens, output_tokens)


class AdapterLoader:
    """Adapter residency in one engine session: plans every load and every eviction.

    vLLM never evicts or reads a file by itself.

    Args:
        slots: number of the engine's LoRA slots.
        host_bytes: capacity of the host tier, in bytes.
        notify: listener for every load and removal.
    """

    def __init__(
        self,
        transfers: Transfers,
        cache: DiskCache,
        queue: AdmissionQueue,
        *,
        slots: int,
        host_bytes: int,
        notify: Listener,
    ) -> None:
        self._transfers, self._queue, self._notify = transfers, queue, notify
        self.host = HostTier(transfers, cache, queue, capacity=host_bytes)
        self.slots = Residency(slots)
        self.failures = 0
        #: Versions in slots, or on their way there.
        self._keys: dict[int, VersionKey] = {}
        #: Versions on their way out of slots, with the number of removals under way.
        self._leaving: Counter[int] = Counter()
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        #: Serializes slot changes in the order of the plan: an evicted version may be loaded again before it is out.
        self._changes = asyncio.Lock()
        self._closed = False
        #: Digest of the bytes under each version id, of all ids that are held and some that were.
        self._digests: dict[int, str] = {}
        self._numbers = itertools.count(1)

    async def enter(self, request: AdmissionRequest) -> LoadedLease:
        """Wait until the first sequence of a base-model request may run.

        Raises:
            QueueFull, Busy, EngineUnavailable
        """
        await self._enter(request)
        return self._lease(request, request.request_id)

    async def later(
        self, later_sequences: LaterSequences, key: VersionKey | None
    ) -> AsyncGenerator[tuple[int, LoadedLease]]:
        """Yield the further sequences of a request, each once it may run and its version has a slot.

        Raises: as :meth:`lease`, except QueueFull and Busy.
        """
        request = replace(later_sequences.request, deadline=None)
        if key:
            self.host.hold(key, request.tenant)
        try:
            async for sequence in later_sequences:
                name, now = request.name(sequence), time.monotonic()
                if key:
                    await self._placed(request, name, key, now, now)
                yield sequence, self._lease(request, name)
        finally:
            later_sequences.close()
            if key:
                self.host.let_go(key.version_id)

    async def lease(self, request: AdmissionRequest, key: VersionKey) -> LoadedLease:
        """Wait until the request may run and its version has a slot.

        The version is fetched and staged while the request queues. A slot is given only to a version that can be
        copied into it at once.

        Raises:
            QueueFull, AdapterLoadFailed, EngineUnavailable
            Busy: the queue refuses the request, or the deadline passes before the version has its slot.
            adapters.errors.StorageError: the version's bytes are not available.
        """
        self._queue.check_open()
        arrived_at = time.monotonic()
        async with before_deadline(request, "its adapter"):
            await self._displace(key)
        cold = key.version_id not in self.slots
        self.host.hold(key, request.tenant)
        try:
            await self._enter(request)
            admitted_at = time.monotonic()
            await self._placed(request, request.request_id, key, arrived_at, admitted_at)
            phases = self._phases(key, arrived_at, admitted_at) if cold else None
        finally:
            self.host.let_go(key.version_id)
        return self._lease(request, request.request_id, phases)

    async def load(self, key: VersionKey) -> None:
        """Load a version into a slot. It stays until its slot is needed.

        Raises: as :meth:`lease`.
        """
        (await self.lease(self.internal_request("load", key), key)).release()

    def prefetch(self, key: VersionKey) -> None:
        """Prefetch a version into host memory if it fits without an eviction."""
        if self._identify(key):
            self.host.prefetch(key)

    def internal_request(self, purpose: str, key: VersionKey) -> AdmissionRequest:
        """Build the server's own admission request for a version. It takes no place in the batch."""
        return AdmissionRequest(f"{purpose} {next(self._numbers)}", "", 1.0, key.version_id, (), 0, sequences=0)

    def keep_slot(self, version_id: int) -> None:
        """Admit every request of a leased version at once, until :meth:`share_slot`."""
        self._queue.pin(version_id)

    def share_slot(self, version_id: int) -> None:
        self._queue.unpin(version_id)

    def holds(self, version_id: int) -> bool:
        """Return whether the version is in a slot or in host memory, or on its way in or out."""
        return any(version_id in tier for tier in (self._keys, self._leaving, self.slots)) or self.host.holds(
            version_id
        )

    def digest(self, version_id: int) -> str:
        """Return the content digest of a version that is here or wanted; empty for others."""
        return self._digests.get(version_id, "")

    async def unload(self, version_id: int) -> None:
        """Drop a version now, or when its last request has ended."""
        await self.host.remove(version_id)
        if self.slots.remove(version_id):
            await self._remove(version_id)

    async def close(self) -> None:
        """Refuse all waiting requests and release every file, after the engine's end."""
        self._closed = True
        self._queue.close()
        tasks = [*self._loads.values(), *self._removals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.host.close()

    def _identify(self, key: VersionKey) -> bool:
        """Record the digest of a version id. Return False if other bytes are held under the id."""
        held_digest = self._digests.get(key.version_id, key.digest)
        if held_digest != key.digest and self.holds(key.version_id):
            return False
        if len(self._digests) >= _MOST_DIGESTS:
            self._digests = {number: digest for number, digest in self._digests.items() if self.holds(number)}
        self._digests[key.version_id] = key.digest
        return True

    async def _displace(self, key: VersionKey) -> None:
        """Drop other bytes held under the version's id, and return once none are left.

        Ids are never reused, except when a database is restored under a running server.
        """
        if self._identify(key):
            return
        logger.warning("Version %s has the id of other bytes in the engine, which are dropped.", key.lora_name)
        while not self._identify(key):
            await self.unload(key.version_id)
            # Requests that run on the old bytes end first.
            await asyncio.sleep(_DISPLACE_POLL_S)
            self._queue.check_open()

    async def _enter(self, request: AdmissionRequest) -> None:
        try:
            with stage("admission"):
                await self._queue.enter(request)
        except BaseException:
            self._queue.leave(request.request_id)
            raise

    async def _placed(
        self, request: AdmissionRequest, name: str, key: VersionKey, arrived_at: float, admitted_at: float
    ) -> None:
        """Give an admitted sequence a slot with its version; on an error, leave the queue."""
        try:
            await self._ensure_placed(request, key, arrived_at, admitted_at)
        except BaseException:
            # The copy continues without the request that started it, and occupies the place until it ends.
            if load := self._loads.get(key.version_id):
                load.add_done_callback(lambda _: self._leave(name, 0, 0))
            else:
                self._leave(name, 0, 0)
            raise

    async def _ensure_placed(
        self, request: AdmissionRequest, key: VersionKey, arrived_at: float, admitted_at: float
    ) -> None:
        """Lease a slot, and copy the version into it first if needed.

        Args:
            arrived_at: monotonic time of the request's arrival.
            admitted_at: monotonic time of its admission.
        """
        version_id = key.version_id
        decision = self.slots.admit(version_id, now=time.monotonic())
        if decision.admission is Admission.WAIT:
            # The queue admits no more distinct versions than there are slots.
            raise EngineUnavailable("Every slot of the engine is in use. Try again later.", retry_after=1)
        if decision.admission is Admission.LOAD:
            leaving = tuple(self._leave_slot(other) for other in decision.evict)
            self._keys[version_id] = key
            load = self._loads[version_id] = asyncio.create_task(
                self._place(request.tenant, key, leaving, arrived_at, admitted_at)
            )
            # Requests that wait for the load get its error. Retrieve it in case all of them have gone away.
            load.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            if pending := self._loads.get(version_id):
                # The request that started the load may be cancelled. Others still wait for the load.
                async with before_deadline(request, "its adapter"):
                    await asyncio.shield(pending)
        except BaseException:
            self._give_back_slot(version_id)
            raise

    async def _place(
        self, tenant: str, key: VersionKey, leaving: tuple[VersionKey, ...], arrived_at: float, admitted_at: float
    ) -> None:
        version_id, started = key.version_id, time.monotonic()
        for other in leaving:
            self.host.slot_lost(other.version_id)
        try:
            await self._fill_slot(tenant, key, leaving)
        except BaseException as error:
            self.slots.failed(version_id)
            del self._keys[version_id]
            if isinstance(error, AdapterLoadFailed):
                self.failures += 1
                self._notify(EngineEvent("load_failed", version_id, time.monotonic() - started))
            raise
        finally:
            for other in leaving:
                self._left_slot(other.version_id)
                self._notify(EngineEvent("evict", other.version_id))
            del self._loads[version_id]
        self.host.slot_given(version_id)
        self._notify(
            EngineEvent("load", version_id, time.monotonic() - started, self._phases(key, arrived_at, admitted_at))
        )
        if self.slots.loaded(version_id):
            await self._remove(version_id)

    async def _fill_slot(self, tenant: str, key: VersionKey, leaving: tuple[VersionKey, ...]) -> None:
        async with AsyncExitStack() as copies:
            async with self._changes:
                try:
                    await copies.enter_async_context(self.host.copy(key, tenant))
                except BaseException:
                    # The plan has already given their slots away.
                    for other in leaving:
                        await self._transfers.take_out(other)
                    raise
                placed = self._transfers.place(key, leaving)
            await placed

    def _phases(self, key: VersionKey, arrived_at: float, admitted_at: float) -> LoadPhases:
        """Split the seconds from a request's arrival until now into load phases."""
        arrival = self.host.arrival(key.version_id)
        fetched = max(arrived_at, arrival.fetched) if arrival else arrived_at
        staged = max(fetched, arrival.staged) if arrival else arrived_at
        return LoadPhases(
            fetched - arrived_at, staged - fetched, max(0.0, admitted_at - staged), time.monotonic() - admitted_at
        )

    def _lease(self, request: AdmissionRequest, name: str, phases: LoadPhases | None = None) -> LoadedLease:
        def release(prompt_tokens: int | None, output_tokens: int | None) -> None:
            if request.version_id is not None:
                self._give_back_slot(request.version_id)
            self._leave(name, prompt_tokens, output_tokens)

        return LoadedLease(release, phases)

    def _leave(self, name: str, prompt_tokens: int | None, output_tokens: int | None) -> None:
        self._queue.leave(name, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def _give_back_slot(self, version_id: int) -> None:
        if self.slots.release(version_id, now=time.monotonic()) and not self._closed:
            removal = asyncio.create_task(self._remove(version_id))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    def _remove(self, version_id: int) -> Coroutine[None, None, None]:
        """Free the slot of a version that the plan has removed."""
        return self._removed(self._leave_slot(version_id))

    async def _removed(self, key: VersionKey) -> None:
        try:
            async with self._changes:
                self.host.slot_lost(key.version_id)
                taken = self._transfers.take_out(key)
            await taken
        finally:
            self._left_slot(key.version_id)
        self._notify(EngineEvent("unload", key.version_id))

    def _leave_slot(self, version_id: int) -> VersionKey:
        self._leaving[version_id] += 1
        return self._keys.pop(version_id)

    def _left_slot(self, version_id: int) -> None:
        self._leaving[version_id] -= 1
        if not self._leaving[version_id]:
            del self._leaving[version_id]
