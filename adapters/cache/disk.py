"""Versions on this node's disk, within a budget: fetched once, verified once, leased, evicted by what they are worth.

A version lives in ``<root>/<digest>/`` as ``adapter_config.json`` and ``adapter_model.safetensors``. The directory
appears by one rename after both files' digests were verified, so it is whole or absent. One process owns the root.

What a lease goes through::

    lease -> here and verified -----------------------------------------------> Lease.path, which stays until release
          -> here since an earlier process: hashed -- right ------------------^
          -> not here, or wrong: turn among the fetches -> room made -> fetched to tmp/, verified, renamed -^
          -> failed a moment ago, or its fetch is late: refused at once, with the time to come back
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
    """One version's bytes, here or on their way.

    Attributes:
        digest: SHA-256 (hex) of the version.
        size: in bytes.
        leases: those given out, those who wait for ``preparing``, and that task itself.
        has_room: whether the budget counts it; each of its leases is then one of the plan's too.
        ready: whether this process has seen that the bytes are right.
        preparing: the verification or fetch under way; its result says whether the store was asked.
        share: whose part of the fetches a fetch uses.
        turn: the fetch's.
        late: set when the fetch has passed its deadline.
        dropped: to be removed with the last lease.
    """

    digest: str
    size: int
    leases: int = 0
    has_room: bool = False
    ready: bool = False
    preparing: asyncio.Task[bool] | None = None
    share: str | None = None
    turn: Permit | None = None
    late: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: bool = False


class DiskCache:
    """Versions on this node's disk. Who goes when room is needed is :class:`adapters.residency.Residency`'s rule.

    Opening it blocks for one listing of the root: what is there is adopted as far as the budget goes, and verified on
    its first lease. All other methods belong to one event loop.

    Args:
        root: made if it is missing, mode 0700.
        budget: most bytes kept, those of fetches under way among them.
        fetch_s: seconds after which whoever waits for bytes is refused; what comes later is kept all the same.
        fetches: how many at the same time.

    Attributes:
        hits: leases that found the bytes on this disk.

    Raises:
        StoreUnavailable, DiskFull: the root cannot be made or listed.
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
        """Fetches from the store."""
        return self._fetches.begun

    @property
    def failures(self) -> int:
        """Fetches that failed or passed their deadline."""
        return self._fetches.failed

    @property
    def lost(self) -> tuple[Lost, ...]:
        """Versions whose bytes were missing or wrong when the store was last asked for them."""
        return tuple(self._fetches.lost.values())

    @property
    def evictions(self) -> int:
        """Versions removed to make room."""
        return self._room.evictions

    @property
    def used_bytes(self) -> int:
        return self._room.used

    @property
    def budget(self) -> int:
        """Most bytes."""
        return self._room.budget

    def has(self, key: VersionKey) -> bool:
        """Whether a lease would find the bytes here and verified."""
        entry = self._entries.get(key.digest)
        return entry is not None and entry.ready

    async def lease(self, key: VersionKey, *, share: str | None = "") -> Lease:
        """Return the version's directory, fetched if need be. ``async with await cache.lease(key) as lease: ...``

        Any number of callers share one fetch; one that is cancelled does not stop it.

        Args:
            share: whose part of the fetches it uses, a tenant's slug; one share has at most half of them, and shares
                take turns. None: nobody waits for it, so it comes last and takes free room only.

        Raises:
            DiskFull: leased versions leave no room in the budget, or the disk has none.
            DigestMismatch: the store's bytes are not those of the key; nothing is kept.
            StoreUnavailable: also if the bytes are not here in time.
            BlobNotFound
        """
        entry, started = self._entry(key, spare=share is None), self._monotonic()
        entry.dropped = False
        self._take(entry)
        try:
            if entry.ready:
                self.hits += 1
                return self._leased(entry, 0.0)
            if share is not None:
                self.hurry(key, share)
            if not await self._in_time(entry, entry.preparing or self._begin(key, entry)):
                self.hits += 1
        except BaseException:
            self._release(entry)
            raise
        return self._leased(entry, self._monotonic() - started)

    def hurry(self, key: VersionKey, share: str) -> None:
        """Somebody of this share waits for a version now: if it is on its way as spare work, it is so no longer."""
        entry = self._entries.get(key.digest)
        if entry is not None and entry.share is None:
            entry.share = share
            if entry.turn is not None:
                self._fetches.turns.hurry(entry.turn, share)

    def forget_failure(self, key: VersionKey) -> None:
        """The store has the version's bytes again: the next lease asks it at once."""
        self._fetches.forget(key)

    async def drop(self, key: VersionKey) -> None:
        """Remove the version from the disk, now or with its last lease; a lease taken before then keeps it."""
        self._fetches.forget(key)
        entry = self._entries.get(key.digest)
        if entry is None:
            # Nothing, unless an earlier removal failed half-way.
            await asyncio.shield(self._discard(key.digest))
            return
        entry.dropped = True
        if not entry.leases:
            await asyncio.shield(self._remove(key.digest))

    async def holds(self, key: VersionKey) -> bool:
        """Whether this disk has any byte of the version, by the disk's own word: also of one half removed."""
        return await asyncio.to_thread(lambda: bool(self._files.leftovers(key.digest)))

    async def sweep(self, live: Collection[str]) -> tuple[str, ...]:
        """Remove what nobody uses and is not among these digests; returns the digests removed.

        For the start of a process: versions may have been deleted while it was down.
        """
        gone = [digest for digest, entry in self._entries.items() if digest not in live and not entry.leases]
        await asyncio.gather(*(asyncio.shield(self._remove(digest)) for digest in gone))
        return tuple(gone)

    def _adopt(self) -> None:
        for found in self._files.found():
            if not found.size:
                self._files.discard(found.digest)
                continue
            self._entries[found.digest] = _Entry(found.digest, found.size, has_room=True)
            for evicted in self._room.adopt(found):
                del self._entries[evicted]
                self._files.discard(evicted)

    def _entry(self, key: VersionKey, *, spare: bool) -> _Entry:
        digest = key.digest
        entry = self._entries.get(digest)
        if entry and entry.late.is_set() and not entry.ready:
            raise _late()
        if entry and not entry.leases and entry.size != key.size:
            # Torn by an earlier process: there is no use in hashing it, and the budget needs the right size.
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

    # How bytes come.

    def _begin(self, key: VersionKey, entry: _Entry) -> asyncio.Task[bool]:
        self._take(entry)
        entry.preparing = asyncio.create_task(self._prepare(key, entry))
        # Its error is for whoever waits; if all have gone away, it is nobody's.
        entry.preparing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return entry.preparing

    async def _in_time(self, entry: _Entry, preparing: asyncio.Task[bool]) -> bool:
        """The task's result; it goes on although the caller is cancelled or the deadline passes.

        Callers that join a fetch give up when it is late, however recently they came.
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
        raise StoreUnavailable(f"the adapter's bytes were not here within {self._fetch_s:g} s", retry_after=RETRY_S)

    async def _prepare(self, key: VersionKey, entry: _Entry) -> bool:
        try:
            intact = entry.has_room and await asyncio.to_thread(self._files.is_intact, key)
            if not intact:
                self._free(entry)
                await self._fetch_in_turn(key, entry)
            entry.ready = True
        except BaseException:
            del self._entries[entry.digest]
            self._free(entry)
            raise
        finally:
            entry.preparing = None
            self._release(entry)
        return not intact

    async def _fetch_in_turn(self, key: VersionKey, entry: _Entry) -> None:
        entry.turn = turn = self._fetches.turns.enter(entry.share)
        try:
            await turn.begun.wait()
            if entry.leases == 1:
                raise StoreUnavailable("nobody waits for the adapter any more")
            self._room.check(entry.size, spare=entry.share is None)
            evicted = self._room.reserve(entry.digest, entry.size, entry.leases)
            entry.has_room = True
            for digest in evicted:
                del self._entries[digest]
                self._discard(digest)
            # What was evicted must be gone before its room is used, and an older copy of this digest before a newer.
            await asyncio.gather(*self._removals)
            await self._fetches.run(key, turn, entry.late)
            self._room.filled(entry.digest)
        finally:
            entry.turn = None
            self._fetches.turns.leave(turn)


def _late() -> StoreUnavailable:
    return StoreUnavailable("the store takes long to deliver the adapter's bytes", retry_after=RETRY_S)
