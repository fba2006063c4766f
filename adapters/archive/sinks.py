"""Output files of an archive: created exclusively with mode 0600, and hashed while they are written."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Unpacked:
    """File unpacked from an archive, with its SHA-256 (hex) and its size in bytes."""

    path: Path
    digest: str
    size: int


class Sinks:
    """Writer of files into one folder, under names that the caller fixes.

    Attributes:
        files: files written, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Unpacked] = {}
        self._folder = folder

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a new file with mode 0600; remove it if ``pieces`` raises.

        Raises:
            OSError: the file exists or cannot be written.
        """
        path = self._folder / name
        digest, size = hashlib.sha256(), 0
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
            try:
                for piece in pieces:
                    _write_whole(file.fileno(), piece)
                    digest.update(piece)
                    size += len(piece)
            except BaseException:
                path.unlink()
                raise
        self.files[name] = Unpacked(path, digest.hexdigest(), size)

    def discard(self) -> None:
        """Remove all files written."""
        for file in self.files.values():
            file.path.unlink()
        self.files.clear()


def _write_whole(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
