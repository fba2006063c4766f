"""This node's disk copy of the versions that its engine uses.

A version lives in ``<root>/<digest>/`` as ``adapter_config.json`` and ``adapter_model.safetensors``, the two
names that PEFT writes and vLLM reads. The directory appears by one rename after both files' digests were
verified, so it is whole or absent. One process owns the root.

What a lease goes through::

    lease -> entry known? -> no: room made, entry reserved -> fetched to tmp/, verified, renamed
                          -> yes, from an earlier process: verified once, else fetched again
          -> Lease.path, which nobody removes until release
"""

import asyncio
import contextlib
import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from adapters.errors import DigestMismatch, DiskFull
from adapters.identity import VersionKey
from adapters.stores.base import BlobStore, is_digest
from adapters.stores.files import disk_errors, file_digest, new_directory, remove, sweep_stale

logger = logging.getLogger(__name__)

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

# asyncio.to_thread may have no more than 5 threads, and a store that stalls must not hold all of them.
_FETCHES = 3


class Lease:
    """The right to read a version's directory; it stays until ``release``.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path, on_release: Callable[[], None]) -> None:
        self.path = path
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Give the right back; a second call does nothing. Call it on the event loop."""
        on_release, self._on_release = self._on_release, None
        if on_release:
            on_release()

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class _Entry:
    """One digest's place in the budget.

    Attributes:
        size: bytes reserved or used.
        leases: those given out, and those who wait for ``preparing``.
        verified: whether this process has seen that the bytes are right.
        preparing: the fetch or verification under way; its result says whether the store was asked.
        dropped: to be removed with the last lease.
    """

    size: int
    leases: int = 0
    verified: bool = False
    preparing: asyncio.Task[bool] | None = None
    dropped: bool = False

    @property
    def in_use(self) -> bool:
        return self.leases > 0 or self.preparing is not None


class DiskCache:
    """Versions on this node's disk, within a budget of bytes, the least recently used evicted first.

    Opening it blocks for one listing of the root: what is there is adopted, and verified on its first lease.
    All other methods belong to one event loop.

    Args:
        root: made if it is missing, mode 0700.
        budget_bytes: most bytes kept, those of fetches under way among them.

    Attributes:
        hits: leases that found verified bytes on this disk.
        misses: fetches from the store.
        evictions: versions removed to make room.

    Raises:
        StoreUnavailable, DiskFull: the root cannot be made or listed.
    """

    def __init__(self, root: Path, store: BlobStore, budget_bytes: int) -> None:
        self.hits = self.misses = self.evictions = 0
        self._root, self._store, self._budget = root, store, budget_bytes
        self._temporary = root / "tmp"
        self._removals: set[asyncio.Task[None]] = set()
        self._fetches = asyncio.Semaphore(_FETCHES)
        with disk_errors("open the cache"):
            new_directory(self._temporary)
            sweep_stale(self._temporary)
            #: By digest, the least recently used first.
            self._entries = _adopt(root)

    @property
    def used_bytes(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    async def lease(self, key: VersionKey) -> Lease:
        """Return the version's directory, fetched if need be. ``async with await cache.lease(key) as lease: ...``

        Any number of callers share one fetch; one that is cancelled does not stop it.

        Raises:
            DiskFull: leased versions leave no room in the budget, or the disk has none.
            DigestMismatch: the store's bytes are not those of the key; nothing is kept.
            BlobNotFound, StoreUnavailable
        """
        entry = self._entry(key)
        entry.leases += 1
        entry.dropped = False
        self._entries.move_to_end(key.digest)
        try:
            if entry.preparing is None and not entry.verified:
                entry.preparing = asyncio.create_task(self._prepare(key, entry))
            if entry.preparing is None or not await asyncio.shield(entry.preparing):
                self.hits += 1
        except BaseException:
            self._release(key.digest, entry)
            raise
        return Lease(self._root / key.digest, lambda: self._release(key.digest, entry))

    async def drop(self, key: VersionKey) -> None:
        """Remove the version from the disk, now or with its last lease; a lease taken before then keeps it."""
        entry = self._entries.get(key.digest)
        if entry is None:
            # Nothing, unless an earlier removal failed half-way.
            await asyncio.shield(self._discard_soon(key.digest))
            return
        entry.dropped = True
        if not entry.in_use:
            await asyncio.shield(self._remove(key.digest))

    async def holds(self, key: VersionKey) -> bool:
        """Whether this disk has any byte of the version, by the disk's own word: also of one half removed."""
        return await asyncio.to_thread(lambda: bool(self._leftovers(key.digest)))

    async def sweep(self, live: Collection[str]) -> tuple[str, ...]:
        """Remove what nobody uses and is not among these digests; returns the digests removed.

        For the start of a process: versions may have been deleted while it was down.
        """
        gone = [digest for digest, entry in self._entries.items() if digest not in live and not entry.in_use]
        await asyncio.gather(*(asyncio.shield(self._remove(digest)) for digest in gone))
        return tuple(gone)

    def _entry(self, key: VersionKey) -> _Entry:
        entry = self._entries.get(key.digest)
        if entry and not entry.in_use and entry.size != key.size:
            # Torn by an earlier process: there is no use in hashing it, and the budget needs the right size.
            self._remove(key.digest)
            entry = None
        if entry is None:
            self._make_room(key.size)
            entry = self._entries[key.digest] = _Entry(key.size)
        return entry

    def _make_room(self, size: int) -> None:
        idle = [(digest, entry.size) for digest, entry in self._entries.items() if not entry.in_use]
        excess = self.used_bytes + size - self._budget
        if excess > sum(size for _, size in idle):
            raise DiskFull(f"the cache has no room for {size} bytes: its budget is {self._budget}, the rest is in use")
        for digest, freed in idle:
            if excess <= 0:
                return
            excess -= freed
            self.evictions += 1
            self._remove(digest)

    def _release(self, digest: str, entry: _Entry) -> None:
        entry.leases -= 1
        if self._entries.get(digest) is not entry:
            return  # its fetch failed
        self._entries.move_to_end(digest)
        if entry.dropped and not entry.in_use:
            self._remove(digest)

    def _remove(self, digest: str) -> asyncio.Task[None]:
        del self._entries[digest]
        return self._discard_soon(digest)

    def _discard_soon(self, digest: str) -> asyncio.Task[None]:
        task = asyncio.create_task(asyncio.to_thread(self._discard, digest))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    async def _prepare(self, key: VersionKey, entry: _Entry) -> bool:
        fetched = False
        try:
            # What was evicted must be gone before its place is used, and an older copy of this digest before a newer.
            await asyncio.gather(*self._removals)
            if not await asyncio.to_thread(self._is_intact, key):
                fetched = True
                self.misses += 1
                async with self._fetches:
                    await asyncio.to_thread(self._fetch, key)
            entry.verified = True
        except BaseException:
            del self._entries[key.digest]
            raise
        finally:
            entry.preparing = None
            if entry.verified and entry.dropped and not entry.in_use:
                self._remove(key.digest)
        return fetched

    # The rest runs in threads and touches files only.

    def _is_intact(self, key: VersionKey) -> bool:
        path, files = self._root / key.digest, _files(key)
        try:
            # A third file could be one that the engine reads: added tokens, new embeddings.
            if {entry.name for entry in path.iterdir()} == set(files) and all(
                file_digest(path / name) == digest for name, digest in files.items()
            ):
                os.utime(path)
                return True
        except FileNotFoundError:
            return False
        except OSError:
            logger.exception("the cached copy of %s cannot be read", key.digest)
        logger.warning("the cached copy of %s is not what its digest says; it is fetched again", key.digest)
        self._discard(key.digest)
        return False

    def _fetch(self, key: VersionKey) -> None:
        temporary = self._new_temporary(key.digest)
        with disk_errors("cache an adapter"):
            temporary.mkdir(mode=0o700)
            try:
                for name, digest in _files(key).items():
                    self._fetch_file(digest, temporary / name)
                temporary.rename(self._root / key.digest)
            except BaseException:
                remove(temporary)
                raise

    def _fetch_file(self, digest: str, path: Path) -> None:
        self._store.fetch(digest, path)
        if file_digest(path) != digest:
            raise DigestMismatch(f"the store's bytes are not those of {digest}")

    def _discard(self, digest: str) -> None:
        try:
            # Renamed first, so that half a version is never seen under its digest.
            with contextlib.suppress(FileNotFoundError):
                (self._root / digest).rename(self._new_temporary(digest))
            for doomed in self._leftovers(digest):
                remove(doomed)
        except FileNotFoundError:
            return
        except OSError:
            logger.exception("the cached copy of %s could not be removed", digest)

    def _new_temporary(self, digest: str) -> Path:
        return self._temporary / f"{digest}.{uuid.uuid4().hex}"

    def _leftovers(self, digest: str) -> list[Path]:
        own = self._root / digest
        return [*([own] if os.path.lexists(own) else []), *self._temporary.glob(f"{digest}.*")]


def _files(key: VersionKey) -> dict[str, str]:
    return {CONFIG_NAME: key.config_digest, WEIGHTS_NAME: key.weights_digest}


def _adopt(root: Path) -> OrderedDict[str, _Entry]:
    """Entries for what an earlier process left, the least recently verified first, with sizes but unverified."""
    found = []
    for directory in os.scandir(root):
        if is_digest(directory.name) and directory.is_dir(follow_symlinks=False):
            size = sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(directory.path))
            found.append((directory.stat(follow_symlinks=False).st_mtime, directory.name, size))
    return OrderedDict((name, _Entry(size)) for _, name, size in sorted(found))
