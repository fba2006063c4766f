"""Directories of the disk cache: complete on creation, verified, and renamed before removal. All functions block."""

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapters.errors import DigestMismatch
from adapters.identity import VersionKey
from adapters.stores.base import BlobStore, is_digest
from adapters.stores.files import disk_errors, file_digest, new_directory, remove, sweep_stale

logger = logging.getLogger(__name__)

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class CachedDirectory:
    """Directory left by an earlier process: its size in bytes, and the seconds since its last verification."""

    digest: str
    size: int
    age_s: float


class VersionFiles:
    """``<root>/<digest>/`` with the two files that PEFT writes and vLLM reads; ``<root>/tmp`` holds unfinished ones.

    Args:
        root: directory of the cache; created with mode 0700 if missing. Day-old leftovers in its ``tmp`` are removed.

    Raises:
        StoreUnavailable, DiskFull: the root cannot be created.
    """

    def __init__(self, root: Path, store: BlobStore) -> None:
        self._root, self._store, self._temporary = root, store, root / "tmp"
        with disk_errors("open the cache"):
            new_directory(self._temporary)
            sweep_stale(self._temporary)

    def path(self, digest: str) -> Path:
        return self._root / digest

    def directories(self) -> list[CachedDirectory]:
        """List the directories of an earlier process, unverified, the least recently verified first.

        Raises:
            StoreUnavailable: the root cannot be listed.
        """
        with disk_errors("open the cache"):
            return sorted(self._scan(), key=lambda directory: -directory.age_s)

    def is_intact(self, key: VersionKey) -> bool:
        """Hash the copy and return whether it matches its digest. A corrupt copy is removed."""
        path, files = self.path(key.digest), _files(key)
        try:
            # The engine could read a third file, such as added tokens or new embeddings.
            if {entry.name for entry in path.iterdir()} == set(files) and all(
                file_digest(path / name) == digest for name, digest in files.items()
            ):
                os.utime(path)
                return True
        except FileNotFoundError:
            return False
        except OSError:
            logger.exception("The cached copy of %s cannot be read.", key.digest)
        logger.warning("The cached copy of %s does not match its digest, so it is fetched again.", key.digest)
        self.discard(key.digest)
        return False

    def fetch(self, key: VersionKey) -> None:
        """Fetch the version from the store. Its directory appears by one rename after both digests are verified.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable, DiskFull: the fetch failed and left nothing.
        """
        if self.is_intact(key):
            return  # left by a removal that failed
        temporary = self._new_temporary(key.digest)
        with disk_errors("cache an adapter"):
            temporary.mkdir(mode=0o700)
            try:
                for name, digest in _files(key).items():
                    self._fetch_file(digest, temporary / name)
                temporary.rename(self.path(key.digest))
            except BaseException:
                remove(temporary)
                raise

    def discard(self, digest: str) -> None:
        """Remove a version's directory and its unfinished copies. Failures are logged."""
        try:
            # Rename first, so that a partial version is never visible under its digest.
            with contextlib.suppress(FileNotFoundError):
                self.path(digest).rename(self._new_temporary(digest))
            for doomed in self.leftovers(digest):
                remove(doomed)
        except FileNotFoundError:
            return
        except OSError:
            logger.exception("The cached copy of %s could not be removed.", digest)

    def leftovers(self, digest: str) -> list[Path]:
        """Return all paths of a version on this disk, complete or unfinished."""
        complete = self.path(digest)
        # `glob` would cache a compiled pattern for each digest.
        half_made = (path for path in self._temporary.iterdir() if path.name.startswith(f"{digest}."))
        return [*([complete] if os.path.lexists(complete) else []), *half_made]

    def _scan(self) -> Iterator[CachedDirectory]:
        now = time.time()
        for directory in os.scandir(self._root):
            if is_digest(directory.name) and directory.is_dir(follow_symlinks=False):
                size = sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(directory.path))
                yield CachedDirectory(directory.name, size, now - directory.stat(follow_symlinks=False).st_mtime)

    def _fetch_file(self, digest: str, path: Path) -> None:
        self._store.fetch(digest, path)
        if file_digest(path) != digest:
            raise DigestMismatch(f"The SHA-256 of the store's bytes is not {digest}.")

    def _new_temporary(self, digest: str) -> Path:
        return self._temporary / f"{digest}.{uuid.uuid4().hex}"


def _files(key: VersionKey) -> dict[str, str]:
    return {CONFIG_NAME: key.config_digest, WEIGHTS_NAME: key.weights_digest}
