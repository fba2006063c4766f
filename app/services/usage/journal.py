"""Usage journal: records on this node's disk, from the end of an answer until the database has them.

A journal file consists of lines, each with a checksum. A process uses group commit: records that arrive shortly after
a flush share the next one. The process that writes a file holds a lock on it. A file without a lock is therefore
complete, except for last lines that were never acknowledged. See docs/decisions/0026-usage-journal.md.
"""

import asyncio
import fcntl
import json
import logging
import os
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from functools import partial
from operator import attrgetter
from pathlib import Path

from pydantic_core import to_json

from app.domain.batches import LineResult
from app.domain.usage import UsageEntry, UsageRecord
from app.support.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_FIELDS = tuple(field.name for field in fields(UsageRecord))
_values = attrgetter(*_FIELDS)
#: Key of a line's result in an entry. Entries of earlier releases have none.
_RESULT = "result"
_RESERVATION = "reservation"
_RESULT_FIELDS = tuple(field.name for field in fields(LineResult))
_SUFFIX = ".journal"
#: Suffix of files with unreadable lines. The operator decides about them.
_DAMAGED = ".damaged"
#: Seconds between two flushes. A lone record is flushed at once; under load one flush takes several.
_SPACING_S = 0.01
#: Length of the checksum and the space after it, in bytes.
_CHECKSUM_BYTES = 9


class Journal:
    """Journal of one process, in a folder that several processes may share.

    ``add`` belongs to the event loop. File operations run in order on one worker thread. Every method can raise
    OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = WorkerThread("tenora-usage")
        self._file: _File | None = None
        self._lines: list[bytes] = []
        self._flushed: asyncio.Future[None] | None = None
        self._flushing: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Create the folder. Blocks."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def add(self, entry: UsageEntry) -> None:
        """Append an entry, and return when it is on disk.

        It is written even if the caller is cancelled.

        Raises:
            OSError: the entry is not on disk, and will not appear there.
        """
        self._lines.append(_line(entry))
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        flushed = self._flushed
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(flushed)

    async def left(self) -> list[Path]:
        """List files without a writer, oldest first: those of other processes, and sealed ones that still exist."""
        return await self._thread.run(self._unlocked)

    async def sealed(self) -> list[Path]:
        """Seal this process's file, then list the files as ``left`` does. The next record begins a new file."""
        return await self._thread.run(self._seal)

    def size(self) -> int:
        """Return the size of the backlog in bytes: records that the database does not have yet.

        Blocks briefly, and may run in any thread.
        """
        total = 0
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # shipped just now
                total += path.stat().st_size
        return total

    async def close(self) -> None:
        """Flush the remaining records and end the thread."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self._thread.run(self._end_file)
        self._thread.end()

    async def _flush(self) -> None:
        while (flushed := self._flushed) is not None:
            lines, self._lines, self._flushed = self._lines, [], None
            try:
                await self._thread.run(partial(self._write, lines))
            except OSError as error:
                flushed.set_exception(error)
                flushed.exception()  # mark as retrieved: all callers may have been cancelled
            else:
                flushed.set_result(None)
            await asyncio.sleep(_SPACING_S)
        self._flushing = None

    def _write(self, lines: Sequence[bytes]) -> None:
        if self._file is None:
            self._file = _File(self._folder)
        try:
            self._file.append(b"".join(lines))
        except OSError:
            # After a failed flush the state of the page cache is unknown, so the next flush begins a new file.
            self._end_file()
            raise

    def _seal(self) -> list[Path]:
        self._end_file()
        return self._unlocked()

    def _unlocked(self) -> list[Path]:
        files = sorted(path for path in self._folder.iterdir() if path.suffix == _SUFFIX)
        return [path for path in files if not _is_locked(path)]

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _File:
    """A journal file that is being written, under a lock."""

    def __init__(self, folder: Path) -> None:
        # The name begins with the time, so that names sort by age.
        path = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        # Create it under another suffix, so that no process finds it before it is locked.
        hidden = path.with_suffix(".new")
        self._descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self._size = 0
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            hidden.rename(path)
            _sync(folder)
        except OSError:
            os.close(self._descriptor)
            raise

    def append(self, data: bytes) -> None:
        """Write and flush all of the data, or leave the file unchanged.

        Raises:
            OSError
        """
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fdatasync(self._descriptor)
        except OSError:
            # A line that was never acknowledged must not be counted later.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


def read(path: Path) -> Iterator[UsageEntry]:
    """Iterate over the entries of a sealed file. Unreadable lines are logged and skipped. Blocks.

    A process that was killed may leave a truncated last line. It was never acknowledged.

    Raises:
        OSError
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            if entry is not None:
                yield entry
            elif line.endswith(b"\n"):
                logger.error("Line %d of the usage journal %s cannot be read.", number, path.name)


def forget(path: Path) -> None:
    """Remove a file whose records the database has. A file with unreadable lines is renamed instead. Blocks.

    Raises:
        OSError
    """
    with path.open("rb") as lines:
        damaged = any(_text(line) is None and line.endswith(b"\n") for line in lines)
    if damaged:
        path.rename(path.with_suffix(_DAMAGED))
    else:
        path.unlink()


def _line(entry: UsageEntry) -> bytes:
    values = dict(zip(_FIELDS, _values(entry.record), strict=True))
    values["at"] = entry.record.at.isoformat()
    if (result := entry.result) is not None:
        values[_RESULT] = {name: getattr(result, name) for name in _RESULT_FIELDS}
        values[_RESERVATION] = entry.reservation
    # Faster than json.dumps: see docs/decisions/0026-usage-journal.md.
    text = to_json(values)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _text(line: bytes) -> bytes | None:
    """Return a line's content, or None if its checksum does not match."""
    text = line[_CHECKSUM_BYTES:-1]
    return text if line == b"%08x %s\n" % (zlib.crc32(text), text) else None


def _entry(line: bytes) -> UsageEntry | None:
    if (text := _text(line)) is None:
        return None
    values = json.loads(text)
    result, reservation = values.pop(_RESULT, None), values.pop(_RESERVATION, None)
    record = UsageRecord(**values | {"at": datetime.fromisoformat(values["at"])})
    return UsageEntry(record, None if result is None else LineResult(**result), reservation)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return True  # it has a writer, or was shipped just now
    return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
