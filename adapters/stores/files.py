"""File helpers shared by the stores and the disk cache. All functions block."""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import BinaryIO

from adapters.errors import DiskFull, StoreUnavailable

logger = logging.getLogger(__name__)

# EFBIG: the process has reached its file size limit (`ulimit -f`).
NO_ROOM = frozenset({ENOSPC, EDQUOT, EFBIG})
_STALE_S = 24 * 3600
_COPY_BYTES = 2**20


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Translate the operating system's errors about this node's disk.

    Args:
        doing: phrase that completes "This node's disk has no room to ..."; shown to clients, so it must hold no path.

    Raises:
        DiskFull: no room, quota used up, or the process's file size limit reached.
        StoreUnavailable: any other OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"This node's disk has no room to {doing}. Free some space.") from error
        raise StoreUnavailable(f"This node's disk refused to {doing}. Check the disk and the permissions.") from error


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a new file with mode 0600; remove it if the block fails."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def new_directory(path: Path) -> None:
    """Create a directory and its missing parents with mode 0700; leave an existing one unchanged."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        # Path.mkdir(parents=True) would give the parents the process's default mode.
        directory.mkdir(mode=0o700, exist_ok=True)


def link_or_copy(source: Path, target: Path, *, link: bool = True) -> None:
    """Hard-link a file, with mode 0600. Copy it if linking is impossible or ``link`` is False."""
    if link:
        try:
            target.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:
            logger.debug("A file cannot be linked, so it is copied.", exc_info=True)
        else:
            target.chmod(0o600)
            return
    with source.open("rb") as original, new_file(target) as copy:
        shutil.copyfileobj(original, copy, _COPY_BYTES)


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a symbolic link, or a directory tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sweep_stale(directory: Path) -> None:
    """Remove entries last written more than a day ago; another process may still use younger ones."""
    limit = time.time() - _STALE_S
    for entry in directory.iterdir():
        try:
            if entry.lstat().st_mtime < limit:
                remove(entry)
        except FileNotFoundError:
            continue  # another process removed or renamed it
