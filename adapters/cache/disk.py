"""Disk cache with a byte budget: single-flight fetches, verification, leases, and eviction by value.

Each process verifies a version once.

A version lives in ``<root>/<digest>/`` as ``adapter_config.json`` and ``adapter_model.safetensors``. The directory
appears by one rename after both digests are verified, so it is complete or absent. One process owns the root.

Life of a lease::

    lease -> present and verified ------------------------------------------> Lease.path, valid until release
          -> present since an earlier process: hash it -- intact -----------^
          -> absent or corrupt: queue for a fetch -> make room -> fetch to tmp/, verify, rename -^
          -> fetch failed recently or is late: refused at once, with a time to retry
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from adapters.cache.fetches import RETRY_S, Fetches, Lost
from adapters.cache.files import VersionFiles
from adapters.cache.lease import Lease
from adapters.cache.room import Room
from adapters.errors import StoreUnavailable
from adapters.fair_semaphore import Permit
from adapters.identity import VersionKey
from adapters.stores.base import BlobStore


@dataclass(slots=True)
class _Entry:
    """One version's bytes, present or being fetched.

    Attributes:
        digest: SHA-256 (hex) of the version.
        size: size in bytes.
        leases: number of leases: those given out, callers that wait for ``preparing``, and that task itself.
        has_room: whether the budget counts it; each of its leases is then also a lease in the plan.
        ready: whether this process has verified the bytes.
        preparing: verification or fetch under way; its result is True if the store was asked.
        share: share that a fetch is charged to; None for background work.
        permit: permit of the fetch.
        late: event that is set when the fetch passes its deadline.
        dropped: whether it is removed with its last lease.
    """

    digest: str
    size: int
    leases: int = 0
    has_room: bool = False
    ready: bool = False
    preparing: asyncio.Task[bool] | None = None
    share: str | None = None
    permit: Permit | None = None
    late: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: bool = False


class DiskCache:
    """Cache of versions on this node's disk, with eviction by :class:`adapters.residency.Residency`.

    Opening it lists the root once, which blocks. Versions found there are adopted within the budget and verified on
    their first lease. All other methods must run on one event loop.

    Args:
        root: directory of the cache; created with mode 0700 if missing.
        budget: limit of bytes kept, including fetches under way.
        fetch_s: seconds after which callers that wait for bytes are refused; the fetch goes on and its bytes are kept.
        fetches: number of concurrent fetches.
        monotonic: monotonic clock, in seconds.

    Attributes:
        hits: leases that found the bytes on this disk.

    Raises:
        StoreUnavailable, DiskFull: the root cannot be created or listed.
    """

    def __init__(
        self,
        root: Path,
        store: BlobStore,
        budget: int,
        *,
        fetch_s: float = 30.0,
        fetches: int = 16,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hits = 0
        self._fetch_s, self._monotonic = fetch_s, monotonic
        self._files, self._room = VersionFiles(root, store), Room(budget, monotonic)
        self._fetches = Fetches(self._files, monotonic, deadline_s=fetch_s, places=fetches)
        self._entries: dict[str, _Entry] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._adopt()

    @property
    def misses(self) -> int:
        """Number of fetches from the store."""
        return self._fetches.begun

    @property
    def failures(self) -> int:
        """Number of fetches that failed or passed their deadline."""
        return self._fetches.failed

    @property
    def lost(self) -> tuple[Lost, ...]:
        """Versions whose bytes were missing or wrong at the last fetch."""
        return tuple(self._fetches.lost.values())

    @property
    def evictions(self) -> int:
        """Number of versions removed to make room."""
        return self._room.evictions

    @property
    def used_bytes(self) -> int:
        return self._room.used

    @property
    def budget(self) -> int:
        """Limit of bytes kept."""
        return self._room.budget

    @property
    def digests(self) -> frozenset[str]:
        """Digests of the versions whose bytes are here, verified or not."""
        entries = self._entries.values()
        return frozenset(entry.digest for entry in entries if entry.has_room and not (entry.preparing or entry.dropped))

    def has(self, key: VersionKey) -> bool:
        """Return whether a lease would find verified bytes here."""
        entry = self._entries.get(key.digest)
        return entry is not None and entry.ready

    async def lease(self, key: VersionKey, *, share: str | None = "") -> Lease:
        """Lease the version's directory and fetch it if needed.

        Use it as ``async with await cache.lease(key) as lease: ...``

        Concurrent callers share one fetch (single-flight). Cancelling a caller does not stop the fetch.

        Args:
            share: share that the fetch is charged to, a tenant's slug. A share has at most half of the concurrent
                fetches, and shares are served round-robin. None marks background work, which comes last and uses only
                free room.

        Raises:
            DiskFull: leased versions leave no room in the budget, or the disk has none.
            DigestMismatch: the store's bytes do not match the key; nothing is kept.
            StoreUnavailable: the store failed, or the bytes did not arrive in time.
            BlobNotFound: the store has no such bytes.
        """
        entry, started = self._entry(key, spare=share is None), self._monotonic()
        entry.dropped = False
        self._take(entry)
        try:
            if entry.ready:
                self.hits += 1
                return self._leased(entry, 0.0)
            if share is not None:
                self.promote(key, share)
            if not await self._in_time(entry, entry.preparing or self._begin(key, entry)):
                self.hits += 1
        except BaseException:
            self._release(entry)
            raise
        return self._leased(entry, self._monotonic() - started)

    def promote(self, key: VersionKey, share: str) -> None:
        """Promote a background fetch of the version, if there is one, because a caller of this share waits for it."""
        entry = self._entries.get(key.digest)
        if entry is not None and entry.share is None:
            entry.share = share
            if entry.permit is not None:
                self._fetches.semaphore.promote(entry.permit, share)

    def forget_failure(self, key: VersionKey) -> None:
        """Clear the recorded failure, because the store has the version's bytes again.

        The next lease fetches without backoff.
        """
        self._fetches.forget(key)

    async def drop(self, key: VersionKey) -> None:
        """Remove the version from the disk, now or with its last lease. A new lease before that cancels the removal."""
        self._fetches.forget(key)
        entry = self._entries.get(key.digest)
        if entry is None:
            # Nothing is there, unless an earlier removal failed part-way.
            await asyncio.shield(self._discard(key.digest))
            return
        entry.dropped = True
        if not entry.leases:
            await asyncio.shield(self._remove(key.digest))

    async def holds(self, key: VersionKey) -> bool:
        """Return whether the disk holds any byte of the version, including a partial removal. Reads the disk."""
        return await asyncio.to_thread(lambda: bool(self._files.leftovers(key.digest)))

    async def sweep(self, live: Collection[str]) -> tuple[str, ...]:
        """Remove unleased versions whose digests are not in ``live``.

        Run it at the start of a process: versions may have been deleted while it was down.

        Returns:
            The digests removed.
        """
        gone = [digest for digest, entry in self._entries.items() if digest not in live and not entry.leases]
        await asyncio.gather(*(asyncio.shield(self._remove(digest)) for digest in gone))
        return tuple(gone)

    def _adopt(self) -> None:
        for directory in self._files.directories():
            if not directory.size:
                self._files.discard(directory.digest)
                continue
            self._entries[directory.digest] = _Entry(directory.digest, directory.size, has_room=True)
            for evicted in self._room.adopt(directory):
                del self._entries[evicted]
                self._files.discard(evicted)

    def _entry(self, key: VersionKey, *, spare: bool) -> _Entry:
        digest = key.digest
        entry = self._entries.get(digest)
        if entry and entry.late.is_set() and not entry.ready:
            raise _late()
        if entry and not entry.leases and entry.size != key.size:
            # Incomplete since an earlier process. Hashing it is useless, and the budget needs the right size.
            self._remove(digest)
            entry = None
        if entry is None:
            self._fetches.check(key)
            self._room.check(key.size, spare=spare)
            entry = self._entries[digest] = _Entry(digest, key.size)
        return entry

    def _take(self, entry: _Entry) -> None:
        entry.leases += 1
        if entry.has_room:
            self._room.lease(entry.digest)

    def _leased(self, entry: _Entry, fetch_s: float) -> Lease:
        return Lease(self._files.path(entry.digest), lambda: self._release(entry), fetch_s)

    def _release(self, entry: _Entry) -> None:
        entry.leases -= 1
        if entry.has_room:
            self._room.release(entry.digest)
        if entry.dropped and not entry.leases and self._entries.get(entry.digest) is entry:
            self._remove(entry.digest)

    def _remove(self, digest: str) -> asyncio.Task[None]:
        self._free(self._entries.pop(digest))
        return self._discard(digest)

    def _free(self, entry: _Entry) -> None:
        if entry.has_room:
            entry.has_room = False
            self._room.free(entry.digest, entry.leases)

    def _discard(self, digest: str) -> asyncio.Task[None]:
        task = asyncio.create_task(asyncio.to_thread(self._files.discard, digest))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    # Fetching.

    def _begin(self, key: VersionKey, entry: _Entry) -> asyncio.Task[bool]:
        self._take(entry)
        entry.preparing = asyncio.create_task(self._prepare(key, entry))
        # Retrieve the error, so that asyncio does not log it if all waiters are gone.
        entry.preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return entry.preparing

    async def _in_time(self, entry: _Entry, preparing: asyncio.Task[bool]) -> bool:
        """Wait for the task's result. Neither cancellation nor the deadline stops the task.

        Callers that join a late fetch are refused when it becomes late, even if they joined a moment ago.
        """
        late = asyncio.create_task(entry.late.wait())
        try:
            await asyncio.wait({preparing, late}, timeout=self._fetch_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            late.cancel()
        if preparing.done():
            return preparing.result()
        if entry.late.is_set():
            raise _late()
        raise StoreUnavailable(f"The adapter's bytes did not arrive within {self._fetch_s:g} s.", retry_after=RETRY_S)

    async def _prepare(self, key: VersionKey, entry: _Entry) -> bool:
        try:
            intact = entry.has_room and await asyncio.to_thread(self._files.is_intact, key)
            if not intact:
                self._free(entry)
                await self._fetch_with_permit(key, entry)
            entry.ready = True
        except BaseException:
            del self._entries[entry.digest]
            self._free(entry)
            raise
        finally:
            entry.preparing = None
            self._release(entry)
        return not intact

    async def _fetch_with_permit(self, key: VersionKey, entry: _Entry) -> None:
        entry.permit = permit = self._fetches.semaphore.enter(entry.share)
        try:
            await permit.granted.wait()
            if entry.leases == 1:
                raise StoreUnavailable("No request waits for the adapter any more.")
            self._room.check(entry.size, spare=entry.share is None)
            evicted = self._room.reserve(entry.digest, entry.size, entry.leases)
            entry.has_room = True
            for digest in evicted:
                del self._entries[digest]
                self._discard(digest)
            # Finish removals first: evicted bytes free the room, and an older copy of this digest must be gone.
            await asyncio.gather(*self._removals)
            await self._fetches.run(key, permit, entry.late)
            self._room.filled(entry.digest)
        finally:
            entry.permit = None
            self._fetches.semaphore.leave(permit)


def _late() -> StoreUnavailable:
    return StoreUnavailable("The store takes too long to deliver the adapter's bytes.", retry_after=RETRY_S)
