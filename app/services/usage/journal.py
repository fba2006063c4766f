"""Usage records on this node's disk, from the end of an answer until the database has them.

A file of lines, each with its checksum. What one process writes is flushed to the disk group by group: all that came
within some milliseconds of a flush goes with the next. A file is locked by the process that writes it, so whoever
finds one without a lock finds one that is complete, or whose last lines nobody was promised.
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

from app.domain.usage import UsageRecord
from app.support.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_FIELDS = tuple(field.name for field in fields(UsageRecord))
_values = attrgetter(*_FIELDS)
_SUFFIX = ".journal"
#: What a file is renamed to that has lines which cannot be read; the operator decides.
_DAMAGED = ".damaged"
#: Between two flushes: what comes alone is flushed at once, of many a second each flush takes several.
_SPACING_S = 0.01
#: Of the checksum and the space behind it.
_CHECKSUM_BYTES = 9


class Journal:
    """The journal of one process in a folder that others may share.

    ``add`` belongs to the event loop; all that touches files happens in a thread of its own, in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = WorkerThread("tenora-usage")
        self._file: _File | None = None
        self._lines: list[bytes] = []
        self._flushed: asyncio.Future[None] | None = None
        self._flushing: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make the folder. Blocks.

        Raises:
            OSError
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def add(self, record: UsageRecord) -> None:
        """Return when the record is on the disk, also if nobody waits any more.

        Raises:
            OSError: it is not, and will not be found there.
        """
        self._lines.append(_line(record))
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        flushed = self._flushed
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(flushed)

    async def left(self) -> list[Path]:
        """Files that nobody writes, oldest first: of other processes, and what was sealed and is still there.

        Raises:
            OSError
        """
        return await self._thread.run(self._unlocked)

    async def sealed(self) -> list[Path]:
        """The same, once this process's own file is one of them: it will begin another.

        Raises:
            OSError
        """
        return await self._thread.run(self._seal)

    def size(self) -> int:
        """Bytes of the records that the database does not have yet. Blocks for a moment, in any thread.

        Raises:
            OSError
        """
        total = 0
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # shipped just now
                total += path.stat().st_size
        return total

    async def close(self) -> None:
        """Flush what is left."""
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
                flushed.exception()  # whoever gave up waiting does not leave it unread
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
            # What a failed flush left in the cache is not known: the next one begins a new file.
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
    """A file that is being written, under a lock."""

    def __init__(self, folder: Path) -> None:
        # The time first: the oldest is read first.
        path = folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        # A name that is not yet one of a journal: nobody may find the file before it is locked.
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
        """Write and flush all of it, or leave the file as it was.

        Raises:
            OSError
        """
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fdatasync(self._descriptor)
        except OSError:
            # A line that nobody was promised must not be counted later.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


def read(path: Path) -> Iterator[UsageRecord]:
    """The records of a sealed file; lines that are no records are logged and left out. Blocks.

    The last line of a process that was killed may be cut off: nobody was promised it.

    Raises:
        OSError
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            record = _record(line)
            if record is not None:
                yield record
            elif line.endswith(b"\n"):
                logger.error("usage journal %s: line %d cannot be read", path.name, number)


def forget(path: Path) -> None:
    """Remove a file whose records the database has; one with lines that cannot be read is kept aside. Blocks.

    Raises:
        OSError
    """
    with path.open("rb") as lines:
        damaged = any(_text(line) is None and line.endswith(b"\n") for line in lines)
    if damaged:
        path.rename(path.with_suffix(_DAMAGED))
    else:
        path.unlink()


def _line(record: UsageRecord) -> bytes:
    values = dict(zip(_FIELDS, _values(record), strict=True))
    values["at"] = record.at.isoformat()
    # A fifth of what json.dumps takes.
    text = to_json(values)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _text(line: bytes) -> bytes | None:
    """What a line says; None if it is not what was written."""
    text = line[_CHECKSUM_BYTES:-1]
    return text if line == b"%08x %s\n" % (zlib.crc32(text), text) else None


def _record(line: bytes) -> UsageRecord | None:
    if (text := _text(line)) is None:
        return None
    values = json.loads(text)
    return UsageRecord(**values | {"at": datetime.fromisoformat(values["at"])})


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return True  # somebody writes it, or has shipped it just now
    return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
