"""Local copies of files: uncompressed, fetched once, shared by concurrent users, bounded in bytes.

A deletion removes an idle copy, and waits for the users of any other. A copy is registered before the row of
its file is read. So a deletion that finds no copy was committed before the row is read, and no bytes are fetched.
"""

import asyncio
import shutil
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from adapters.stores.files import disk_errors, new_directory
from app.domain.errors import Busy
from app.domain.files import StoredFile
from app.support.single_flight import SingleFlight

#: Seconds between two passes over idle copies, and the seconds that an idle copy is kept.
EVERY_S = 30.0
IDLE_S = 300.0
_RETRY_AFTER_S = 10

#: Writes the content of a file to a new path.
Fetch = Callable[[StoredFile, Path], Awaitable[None]]


@dataclass(slots=True)
class _Copy:
    file: StoredFile
    path: Path
    #: Idle copies that this one replaces.
    evicted: list[Path]
    users: int = 0
    ready: bool = False
    idle_since: float = field(default_factory=monotonic)

    @property
    def idle(self) -> bool:
        return self.ready and not self.users


class LocalCopies:
    """Copies of one process.

    Args:
        root: folder that holds nothing but copies; its server holds the lock of HOME.
        most_bytes: maximum size of all copies. Files of one tenant in use get at most half of it, or one file.
        fetch: writes the content; raises NotFound for a deleted file.
    """

    def __init__(self, root: Path, *, most_bytes: int, fetch: Fetch, clock: Callable[[], float] = monotonic) -> None:
        self._root, self._most_bytes, self._fetch, self._clock = root, most_bytes, fetch, clock
        self._copies: dict[str, _Copy] = {}
        self._fetches = SingleFlight[None]()

    @property
    def bytes(self) -> int:
        """Size of all copies in bytes, with those that are being fetched."""
        return sum(copy.file.bytes for copy in self._copies.values())

    def open(self) -> None:
        """Create an empty folder; copies of an earlier process are removed. Blocks.

        Raises:
            DiskFull, StoreUnavailable: the folder cannot be created.
        """
        with disk_errors("keep copies of files"):
            if self._root.exists():
                shutil.rmtree(self._root)
            new_directory(self._root)

    @asynccontextmanager
    async def use(self, file: StoredFile) -> AsyncGenerator[Path]:
        """Provide the path of a copy, which stays as long as the block runs. Do not write to it.

        Raises:
            Busy: copies in use leave no room.
            Also every error of ``fetch``.
        """
        copy = self._copies.get(file.id) or self._admit(file)
        copy.users += 1
        try:
            if not copy.ready:
                await self._fetches.run(copy.path, lambda: self._fill(copy))
            yield copy.path
        finally:
            copy.users -= 1
            copy.idle_since = self._clock()

    async def drop(self, file_id: str) -> bool:
        """Remove the copy of a file that is deleted. Returns False while it is used or fetched."""
        copy = self._copies.get(file_id)
        if copy is None:
            return True
        if not copy.idle:
            return False
        del self._copies[file_id]
        await _unlink([copy.path])
        return True

    async def remove_idle(self) -> None:
        """Remove copies without a user for ``IDLE_S``."""
        limit = self._clock() - IDLE_S
        await _unlink([self._forget(copy) for copy in self._idle() if copy.idle_since <= limit])

    def _admit(self, file: StoredFile) -> _Copy:
        in_use = [copy for copy in self._copies.values() if not copy.idle]
        own = sum(copy.file.bytes for copy in in_use if copy.file.tenant_id == file.tenant_id)
        others = sum(copy.file.bytes for copy in in_use) - own
        if own + others + file.bytes > self._most_bytes or (own and own + file.bytes > self._most_bytes // 2):
            raise Busy(
                f"Too many files are read at the same time. Try again in {_RETRY_AFTER_S} seconds.",
                retry_after=_RETRY_AFTER_S,
            )
        evicted = []
        for copy in self._idle():
            if self.bytes + file.bytes <= self._most_bytes:
                break
            evicted.append(self._forget(copy))
        copy = _Copy(file, self._root / uuid.uuid4().hex, evicted)
        self._copies[file.id] = copy
        return copy

    def _idle(self) -> list[_Copy]:
        """Return the idle copies, least recently used first."""
        return sorted((copy for copy in self._copies.values() if copy.idle), key=lambda copy: copy.idle_since)

    def _forget(self, copy: _Copy) -> Path:
        del self._copies[copy.file.id]
        return copy.path

    async def _fill(self, copy: _Copy) -> None:
        try:
            await _unlink(copy.evicted)
            await self._fetch(copy.file, copy.path)
            copy.ready = True
        finally:
            if not copy.ready:
                del self._copies[copy.file.id]
                await _unlink([copy.path])


async def _unlink(paths: list[Path]) -> None:
    if paths:
        # Shield it: unlinking takes time, and must complete even if the caller is cancelled.
        await asyncio.shield(asyncio.to_thread(_unlink_all, paths))


def _unlink_all(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
