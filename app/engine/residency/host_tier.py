"""Host memory tier: fetch adapters to this node's disk, and stage the copies that fill slots."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from adapters.cache import DiskCache, Lease
from adapters.errors import AdapterError
from adapters.identity import VersionKey
from adapters.residency import Admission, Residency
from app.domain.errors import TenoraError
from app.engine.residency.admission_queue import AdmissionQueue
from app.engine.residency.transfer import Transfers


@dataclass(slots=True)
class Arrival:
    """Times at which a version's files reached this disk and its copy reached host memory, by ``time.monotonic``."""

    fetched: float
    staged: float


class HostTier:
    """Host memory cache of adapters: brings in versions that requests wait for, and keeps them while there is room.

    Fetches of different versions run in parallel. Stagings begin in the order in which versions have waited in the
    queue, as room allows. So later requests cannot starve the version that has waited longest. A version that no
    request waits for may be evicted.

    Args:
        capacity: size of the tier, in bytes.

    Attributes:
        residency: plan of this tier, read-only for others.
        failures: number of versions that could not be brought here.
    """

    def __init__(self, transfers: Transfers, cache: DiskCache, queue: AdmissionQueue, *, capacity: int) -> None:
        self._transfers, self._cache, self._queue = transfers, cache, queue
        self.residency = Residency(capacity)
        self.failures = 0
        self._wanting: Counter[int] = Counter()
        self._keys: dict[int, VersionKey] = {}
        self._shares: dict[int, str] = {}
        self._staged: set[int] = set()
        self._leased: set[int] = set()
        self._with_slot: set[int] = set()
        #: Prefetched versions that are not staged yet, in the order of the prefetches.
        self._spare: dict[int, VersionKey] = {}
        self._files: dict[int, Lease] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._stagings: dict[int, asyncio.Task[None]] = {}
        #: Versions staged for a single slot copy, see `copy`. A worker cannot stage a version twice at a time.
        self._passing: set[int] = set()
        self._drops: set[asyncio.Task[None]] = set()

    def holds(self, version_id: int) -> bool:
        """Return whether the version, or only its files, is here or on its way."""
        return version_id in self.residency or version_id in self._files or version_id in self._fetches

    def is_staged(self, version_id: int) -> bool:
        return version_id in self._staged

    def arrival(self, version_id: int) -> Arrival | None:
        """Return the arrival times of a version that was brought here in this engine session."""
        return self._arrivals.get(version_id)

    def hold(self, key: VersionKey, share: str) -> None:
        """Hold a version here for a request until :meth:`let_go`, and start to bring in what is missing.

        Args:
            share: slug of the tenant whose share of the fetches it uses.
        """
        version_id = key.version_id
        self._wanting[version_id] += 1
        self._keys[version_id] = key
        self._shares.setdefault(version_id, share)
        self._bring(key)

    def let_go(self, version_id: int) -> None:
        """Release a request's hold. The request was cancelled, or has the version in a slot."""
        self._wanting[version_id] -= 1
        if not self._wanting[version_id]:
            del self._wanting[version_id]
            if version_id not in self._stagings:
                self._unlease(version_id)
            self._forget(version_id)
            self._advance()

    def prefetch(self, key: VersionKey) -> None:
        """Bring a version here if it fits without an eviction."""
        is_near = self.holds(key.version_id) or key.version_id in self._with_slot
        if not is_near and self.residency.would_fit(key.weights_bytes):
            self._spare[key.version_id] = key
            self._fetch(key, None)

    @asynccontextmanager
    async def copy(self, key: VersionKey, share: str) -> AsyncIterator[None]:
        """Provide a staged copy of a version inside the context, from which a slot can be filled.

        The copy is usually staged already, and is kept if its request goes away. It may have been dropped, or the
        request was admitted for a slot that is lost by now. Then the version is staged for this context alone, even
        if there is no free room.

        Args:
            share: as for :meth:`hold`.

        Raises:
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: its bytes are not available.
        """
        while staging := self._stagings.get(version_id := key.version_id):
            await asyncio.wait({staging})
        if version_id in self._staged:
            self.hold(key, share)
            try:
                yield
            finally:
                self.let_go(version_id)
            return
        self._passing.add(version_id)
        try:
            async with self._passing_copy(key, share):
                yield
        finally:
            self._passing.discard(version_id)
            self._advance()

    @asynccontextmanager
    async def _passing_copy(self, key: VersionKey, share: str) -> AsyncIterator[None]:
        files = await self._cache.lease(key, share=share)
        try:
            await self._transfers.stage(key, files.path)
        finally:
            files.release()
        try:
            yield
        finally:
            await self._transfers.unstage([key.version_id])

    def slot_given(self, version_id: int) -> None:
        """Record that the version has a slot, and needs no copy here."""
        self._with_slot.add(version_id)
        self._queue.staged(version_id)

    def slot_lost(self, version_id: int) -> None:
        """Record that the version lost its slot. Requests that wait for it need a copy again."""
        self._with_slot.discard(version_id)
        if version_id not in self._staged:
            self._queue.unstaged(version_id)
            if version_id in self._wanting:
                self._bring(self._keys[version_id])

    async def remove(self, version_id: int) -> None:
        """Drop a deleted version, now or when no request holds it any more."""
        self._spare.pop(version_id, None)
        self._forget(version_id)
        if self.residency.remove(version_id):
            self._evicted(version_id)
            await self._transfers.unstage([version_id])

    async def close(self) -> None:
        """Cancel all work and release every file, after the engine's end."""
        tasks = [*self._fetches.values(), *self._stagings.values(), *self._drops]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for files in self._files.values():
            files.release()
        self._files.clear()

    def _bring(self, key: VersionKey) -> None:
        version_id = key.version_id
        if version_id in self._staged:
            if version_id not in self._leased:
                self.residency.admit(version_id, key.weights_bytes, now=time.monotonic())
                self._leased.add(version_id)
        elif version_id not in self._with_slot:
            self._fetch(key, self._shares[version_id])

    def _fetch(self, key: VersionKey, share: str | None) -> None:
        """Start to fetch a version, or raise the priority of its fetch; ``share`` is None for a prefetch."""
        version_id = key.version_id
        if version_id in self._fetches:
            if share is not None:
                self._cache.promote(key, share)
        elif version_id not in self._files:
            self._fetches[version_id] = asyncio.create_task(self._fetched(key, share))

    async def _fetched(self, key: VersionKey, share: str | None) -> None:
        version_id = key.version_id
        try:
            self._files[version_id] = await self._cache.lease(key, share=share)
            now = time.monotonic()
            self._arrivals[version_id] = Arrival(now, now)
        except AdapterError as error:
            del self._fetches[version_id]
            self._spare.pop(version_id, None)
            if share is None and version_id in self._wanting:
                # The prefetch failed, perhaps for lack of room, and by now a request waits for the version.
                self._bring(key)
            else:
                self._failed(version_id, error)
        except BaseException:
            del self._fetches[version_id]
            raise
        else:
            del self._fetches[version_id]
            self._forget(version_id)
            self._advance()

    def _advance(self) -> None:
        """Start every staging that has room: first for waiting requests, then for prefetches."""
        for version_id in self._queue.versions_to_stage():
            if self._can_stage(version_id) and not self._stage(version_id):
                return
        for version_id, key in list(self._spare.items()):
            if self._can_stage(version_id):
                if self.residency.would_fit(key.weights_bytes):
                    self._keys.setdefault(version_id, key)
                    self._stage(version_id)
                else:
                    del self._spare[version_id]
                    self._forget(version_id)

    def _can_stage(self, version_id: int) -> bool:
        return version_id in self._files and version_id not in self._stagings and version_id not in self._passing

    def _stage(self, version_id: int) -> bool:
        """Start to stage a version whose files are here. Return False if there is no room yet."""
        key, arrival = self._keys[version_id], self._arrivals[version_id]
        decision = self.residency.admit(version_id, key.weights_bytes, now=time.monotonic())
        if decision.admission is Admission.WAIT:
            return False
        self._leased.add(version_id)
        self._spare.pop(version_id, None)
        for other in decision.evict:
            self._evicted(other)
        staged = self._transfers.stage(key, self._files[version_id].path, decision.evict)
        self._stagings[version_id] = asyncio.create_task(self._staging(key, staged, arrival))
        return True

    async def _staging(self, key: VersionKey, staged: asyncio.Task[int], arrival: Arrival) -> None:
        version_id = key.version_id
        try:
            size = await staged
        except BaseException as error:
            self.residency.failed(version_id)
            self._end_staging(version_id)
            self._unlease(version_id)
            if not isinstance(error, TenoraError):
                raise
            self._failed(version_id, error)
        else:
            arrival.staged = time.monotonic()
            self.residency.loaded(version_id, size)
            self._staged.add(version_id)
            self._end_staging(version_id)
            self._queue.staged(version_id)
            if version_id not in self._wanting:
                self._unlease(version_id)
        self._advance()

    def _end_staging(self, version_id: int) -> None:
        del self._stagings[version_id]
        self._files.pop(version_id).release()
        self._forget(version_id)

    def _forget(self, version_id: int) -> None:
        """Forget a version that no request holds and that is not on its way. A staged copy stays."""
        under_way = version_id in self._stagings or version_id in self._fetches
        if under_way or version_id in self._wanting or version_id in self._spare:
            return
        for of_version in (self._keys, self._shares, self._arrivals):
            of_version.pop(version_id, None)
        if files := self._files.pop(version_id, None):
            files.release()

    def _evicted(self, version_id: int) -> None:
        self._staged.discard(version_id)
        if version_id not in self._with_slot:
            self._queue.unstaged(version_id)

    def _failed(self, version_id: int, error: Exception) -> None:
        self.failures += 1
        self._queue.fail(version_id, error)

    def _unlease(self, version_id: int) -> None:
        if version_id in self._leased:
            self._leased.discard(version_id)
            if self.residency.release(version_id, now=time.monotonic()):
                self._evicted(version_id)
                drop = self._transfers.unstage([version_id])
                self._drops.add(drop)
                drop.add_done_callback(self._drops.discard)
