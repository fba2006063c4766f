"""Blob store in a local folder: ``<root>/sha256/<first 2 digits>/<digest>``; uploads collect in ``<root>/uploads``.

``put`` keeps the uploaded file itself through a hard link, and reads the link once to verify it. Later writes to the
source would change the blob, so the port forbids them. A file of another user, with several names, or on another
filesystem is copied instead, and the copy is verified. See docs/decisions/0010-store-uploads-by-hard-link.md.
"""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from adapters.errors import BlobNotFound, DigestMismatch, StoreUnavailable
from adapters.stores.base import OWNER_NAME, BlobInfo, check_digest, is_digest, read_owner
from adapters.stores.files import disk_errors, file_digest, link_or_copy, new_directory, new_file, sweep_stale, sync
from adapters.stores.local_staging import LocalStaging

_COPY_BYTES = 2**20


class LocalStore:
    """:class:`adapters.stores.base.BlobStore` in a folder, which is created if missing.

    Directories have mode 0700, blobs 0600. Opening the store removes day-old leftovers of dead processes.

    Raises:
        StoreUnavailable, DiskFull: the folder cannot be created.
    """

    def __init__(self, root: Path) -> None:
        self._blobs, self._owner = root / "sha256", root / OWNER_NAME
        # Inside the root, so that a rename stays within one filesystem.
        self._temporary = root / "tmp"
        with disk_errors("open the store"):
            for directory in (self._blobs, self._temporary):
                new_directory(directory)
            sweep_stale(self._temporary)
        self._staging = LocalStaging(root / "uploads", self._temporary, self._keep)

    @property
    def staging(self) -> LocalStaging:
        return self._staging

    def put(self, digest: str, source: Path) -> bool:
        return self._keep(digest, source, ours=False)

    def _keep(self, digest: str, source: Path, *, ours: bool) -> bool:
        """Implement ``put``. ``ours`` asserts that no one else can write to the file, so that it may be linked."""
        path = self._path(digest)
        with disk_errors("store the bytes"):
            if path.exists():
                return False
            temporary = self._temporary / uuid.uuid4().hex
            try:
                link_or_copy(source, temporary, link=ours or _is_ours(source))
                if file_digest(temporary) != digest:
                    raise DigestMismatch(f"The SHA-256 of the file is not {digest}.")
                sync(temporary)
                self._publish(temporary, path)
            finally:
                # A rename onto a link of the same file does nothing and leaves both names.
                temporary.unlink(missing_ok=True)
        return True

    def fetch(self, digest: str, destination: Path) -> None:
        path = self._path(digest)
        with disk_errors("fetch the bytes"):
            try:
                source = path.open("rb")
            except FileNotFoundError:
                raise BlobNotFound(f"The store has no blob {digest}.") from None
            with source, new_file(destination) as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)

    def size(self, digest: str) -> int | None:
        path = self._path(digest)
        with disk_errors("read a size"):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def delete(self, digest: str) -> None:
        path = self._path(digest)
        with disk_errors("delete the bytes"):
            path.unlink(missing_ok=True)

    def list_blobs(self) -> Iterator[BlobInfo]:
        with disk_errors("list the blobs"):
            folders = list(self._blobs.iterdir())
        for folder in folders:
            # Translate errors of this listing only, not errors that the caller raises at the yield.
            with disk_errors("list the blobs"):
                infos = [info for path in folder.iterdir() if (info := _info(path)) is not None]
            yield from infos

    def owner(self) -> str | None:
        with disk_errors("read the store's owner"):
            try:
                return read_owner(self._owner.read_bytes())
            except FileNotFoundError:
                return None

    def claim(self, owner: str) -> str:
        with disk_errors("record the store's owner"), self._noted(owner) as temporary:
            # A link appears atomically and never replaces a file: among concurrent claims, the first one wins.
            with contextlib.suppress(FileExistsError):
                self._owner.hardlink_to(temporary)
                sync(self._owner.parent)
            return read_owner(self._owner.read_bytes())

    def take_over(self, owner: str) -> None:
        with disk_errors("record the store's owner"), self._noted(owner) as temporary:
            temporary.rename(self._owner)
            sync(self._owner.parent)

    @contextlib.contextmanager
    def _noted(self, owner: str) -> Iterator[Path]:
        """Create a temporary file with a registry's id."""
        temporary = self._temporary / uuid.uuid4().hex
        try:
            with new_file(temporary) as file:
                file.write(owner.encode() + b"\n")
            sync(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def check(self) -> None:
        for directory in (self._blobs, self._temporary):
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                reason = "its folder is missing, or cannot be read and written"
                raise StoreUnavailable("The store's folder is missing, or cannot be read and written.", reason=reason)

    def _path(self, digest: str) -> Path:
        return self._blobs / check_digest(digest)[:2] / digest

    def _publish(self, temporary: Path, path: Path) -> None:
        if not path.parent.is_dir():
            new_directory(path.parent)
            sync(self._blobs)
        temporary.rename(path)
        sync(path.parent)


def _is_ours(source: Path) -> bool:
    """Return whether only this user can write to the file: a regular file with one name, owned by this user."""
    status = source.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()


def _info(path: Path) -> BlobInfo | None:
    if not is_digest(path.name):
        return None
    try:
        status = path.stat()
    except FileNotFoundError:
        return None  # deleted while the folder was read
    return BlobInfo(path.name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
