"""Spool for uploads before validation: one folder per upload, inside a locked folder per process.

Several processes may share a HOME. Each holds a lock on its folder while it lives. The next process to start thus
detects the folders of crashed processes and removes them.
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

#: Bytes buffered before a thread hashes and writes them: enough to make the thread switch cheap. A file in flight
#: takes at most two such buffers of memory.
BATCH_BYTES = 4 * 2**20
#: Seconds; short, because the upload has waited for a permit already.
_RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A received file with its SHA-256 (hex) and its size in bytes.

    Attributes:
        adopt: moves bytes from the store's staging area to their digest; blocks. None: the store is given the bytes
            from ``path``.
    """

    path: Path
    digest: str
    size: int
    adopt: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """The two files of a version, under PEFT's names in one folder."""

    config: SpooledFile
    weights: SpooledFile

    @property
    def folder(self) -> Path:
        return self.weights.path.parent


class Spool:
    """Folder of one process's uploads in flight.

    Args:
        places: maximum number of concurrent uploads; one tenant may have half of them.
        patience_s: longest wait for a permit, in seconds.
    """

    def __init__(self, root: Path, *, places: int, patience_s: float) -> None:
        self._root = root
        self._semaphore = FairSemaphore(places)
        self._patience_s = patience_s
        self._own = root / uuid.uuid4().hex
        self._lock: int | None = None

    def open(self) -> None:
        """Create and lock this process's folder, and remove the folders of dead processes. Blocks.

        Raises:
            DiskFull, StoreUnavailable: the folder cannot be created.
        """
        with disk_errors("receive uploads"):
            while self._lock is None:
                new_directory(self._own)
                self._lock = _lock(self._own)
            for folder in self._root.iterdir():
                if folder != self._own and (abandoned := _lock(folder)) is not None:
                    shutil.rmtree(folder)
                    os.close(abandoned)

    def close(self) -> None:
        """Remove this process's folder with its content. Blocks."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @asynccontextmanager
    async def folder(self, tenant: str) -> AsyncGenerator[Path]:
        """Provide a new folder, which is removed with its files when the block ends.

        Args:
            tenant: tenant of the upload; permits are granted round-robin over tenants.

        Raises:
            Busy: no permit became available.
            DiskFull, StoreUnavailable: the folder cannot be created.
        """
        path = self._own / uuid.uuid4().hex
        try:
            async with self._semaphore.permit(tenant, patience_s=self._patience_s):
                try:
                    with disk_errors("receive an upload"):
                        await asyncio.to_thread(path.mkdir, mode=0o700)
                    yield path
                finally:
                    # Shield it: unlinking gigabytes takes time, and must complete even if the request is cancelled.
                    await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))
        except QueueFull:
            message = f"Too many uploads are running. Try again in {_RETRY_AFTER_S} seconds."
            raise Busy(message, retry_after=_RETRY_AFTER_S) from None


class SpoolWriter:
    """Double-buffered file writer: a thread hashes and writes one batch while the next is gathered.

    Feed it with ``add``, and ``await flush()`` whenever it is ``due``. End with ``finish`` or ``abandon``.

    Raises:
        DiskFull, StoreUnavailable: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors("receive the upload"):
            self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._batch = bytearray()
        self._writing: asyncio.Future[None] | None = None
        self.size = 0

    def add(self, data: memoryview) -> None:
        """Append bytes; they are copied."""
        self._batch += data
        self.size += len(data)

    @property
    def due(self) -> bool:
        return len(self._batch) >= BATCH_BYTES

    async def flush(self) -> None:
        """Wait for the previous batch, then start to write this one.

        Raises:
            DiskFull, StoreUnavailable: the previous batch could not be written.
        """
        await self._settle()
        batch, self._batch = self._batch, bytearray()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, batch)

    async def finish(self) -> SpooledFile:
        """Write the last batch and close the file.

        Raises:
            DiskFull, StoreUnavailable: the file could not be written.
        """
        await self.flush()
        await self._settle()
        await asyncio.to_thread(self._close)
        return SpooledFile(self._path, self._hash.hexdigest(), self.size)

    async def abandon(self) -> None:
        """Wait for the writing thread and close the file; write errors are ignored."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        with contextlib.suppress(StorageError):
            await asyncio.to_thread(self._close)

    async def _settle(self) -> None:
        if self._writing is not None:
            # A thread cannot be cancelled. Shield it, so that a cancelled caller can still wait for it later.
            await asyncio.shield(self._writing)
            self._writing = None

    def _write(self, batch: bytearray) -> None:
        with disk_errors("receive the upload"):
            self._file.write(batch)
            self._hash.update(batch)

    def _close(self) -> None:
        with disk_errors("receive the upload"):
            self._file.close()


def _lock(folder: Path) -> int | None:
    """Try to lock a folder; return a descriptor that holds the lock, or None if another process holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # Another process may have removed the folder as abandoned between its creation and its locking.
    if not folder.exists():
        os.close(descriptor)
        return None
    return descriptor
