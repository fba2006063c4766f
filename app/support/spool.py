"""Where uploads land before they are checked: one folder per upload, in a folder that this process holds locked.

Several processes may share a HOME. Each holds a lock on its own folder while it lives, so whoever starts
next can tell what a crashed one left behind and removes it.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.errors import StorageError
from adapters.fair_semaphore import FairSemaphore, QueueFull
from adapters.stores.files import disk_errors, new_directory
from app.domain.errors import Busy

#: Bytes gathered before a thread hashes and writes them: enough to make the hop cheap, and two of them are
#: all the memory that a file in flight takes.
BATCH_BYTES = 4 * 2**20
#: Of an upload that has waited for its place already.
_RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A received file: its SHA-256 (hex) and its size in bytes.

    Attributes:
        adopt: keeps bytes that the store has already, in its staging area, under their digest; blocks. None: the
            store gets them from ``path``.
    """

    path: Path
    digest: str
    size: int
    adopt: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """The two files of a version, as PEFT names them, side by side in one folder."""

    config: SpooledFile
    weights: SpooledFile

    @property
    def folder(self) -> Path:
        return self.weights.path.parent


class Spool:
    """The folder of one process's uploads in flight.

    Args:
        places: uploads at the same time; half of them for one tenant.
        patience_s: how long another one waits for a place, in seconds.
    """

    def __init__(self, root: Path, *, places: int, patience_s: float) -> None:
        self._root = root
        self._turns = FairSemaphore(places)
        self._patience_s = patience_s
        self._own = root / uuid.uuid4().hex
        self._lock: int | None = None

    def open(self) -> None:
        """Make and lock this process's folder, and remove those of processes that are gone. Blocks.

        Raises:
            DiskFull, StoreUnavailable: the folder cannot be made.
        """
        with disk_errors("spool uploads"):
            while self._lock is None:
                new_directory(self._own)
                self._lock = _lock(self._own)
            for folder in self._root.iterdir():
                if folder != self._own and (abandoned := _lock(folder)) is not None:
                    shutil.rmtree(folder)
                    os.close(abandoned)

    def close(self) -> None:
        """Remove this process's folder and whatever is in it. Blocks."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @asynccontextmanager
    async def folder(self, tenant: str) -> AsyncGenerator[Path]:
        """A new folder that is gone, with its files, when the block ends.

        Args:
            tenant: whose upload it is; tenants take turns.

        Raises:
            Busy: no place came free.
            DiskFull, StoreUnavailable
        """
        path = self._own / uuid.uuid4().hex
        try:
            async with self._turns.place(tenant, patience_s=self._patience_s):
                try:
                    with disk_errors("spool an upload"):
                        await asyncio.to_thread(path.mkdir, mode=0o700)
                    yield path
                finally:
                    # Unlinking gigabytes takes a while, and must happen even if the request is being cancelled.
                    await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))
        except QueueFull:
            raise Busy("too many uploads at the same time", retry_after=_RETRY_AFTER_S) from None


class SpoolWriter:
    """Writes and hashes one file in batches, off the event loop: one batch is written while the next is gathered.

    Feed it with ``add``, and ``await flush()`` whenever it is ``due``; end with ``finish``, or with ``abandon``.

    Raises:
        DiskFull, StoreUnavailable: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors("spool the upload"):
            self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._batch = bytearray()
        self._writing: asyncio.Future[None] | None = None
        self.size = 0

    def add(self, data: memoryview) -> None:
        """Take bytes; they are copied."""
        self._batch += data
        self.size += len(data)

    @property
    def due(self) -> bool:
        return len(self._batch) >= BATCH_BYTES

    async def flush(self) -> None:
        """Wait for the batch before, then start to write this one.

        Raises:
            DiskFull, StoreUnavailable: the batch before could not be written.
        """
        await self._settle()
        batch, self._batch = self._batch, bytearray()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, batch)

    async def finish(self) -> SpooledFile:
        """Write what is left and close the file.

        Raises:
            DiskFull, StoreUnavailable
        """
        await self.flush()
        await self._settle()
        await asyncio.to_thread(self._close)
        return SpooledFile(self._path, self._hash.hexdigest(), self.size)

    async def abandon(self) -> None:
        """Close the file, once no thread writes to it any more; what becomes of its bytes does not matter."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        with contextlib.suppress(StorageError):
            await asyncio.to_thread(self._close)

    async def _settle(self) -> None:
        if self._writing is not None:
            # A thread cannot be stopped: whoever is cancelled here must still be able to wait for it.
            await asyncio.shield(self._writing)
            self._writing = None

    def _write(self, batch: bytearray) -> None:
        with disk_errors("spool the upload"):
            self._file.write(batch)
            self._hash.update(batch)

    def _close(self) -> None:
        with disk_errors("spool the upload"):
            self._file.close()


def _lock(folder: Path) -> int | None:
    """Lock a folder without waiting: a descriptor that holds the lock, or None if another process has it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # Between its making and its locking another process may have taken the folder for an abandoned one.
    if not folder.exists():
        os.close(descriptor)
        return None
    return descriptor
