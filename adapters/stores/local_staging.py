"""Staging area in a folder: ``<root>/<upload>/<file>/parts/<number>``, then ``<root>/<upload>/<file>/whole``.

Parts and the whole file each appear by one rename, so a killed process leaves no partial file under either name. A file
that has its final name is never written to again. So the whole file may become a blob by a hard link.
"""

import os
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from errno import EINVAL, ENOSYS, EOPNOTSUPP, EXDEV
from pathlib import Path
from typing import BinaryIO, Protocol

from adapters.errors import BlobNotFound, StoreUnavailable
from adapters.stores.files import disk_errors, file_digest, link_or_copy, new_directory, new_file, remove, sync
from adapters.stores.staging import PartUrl, Staged, is_upload_id

#: Smallest part in bytes: a killed client loses little, and one request for each part stays cheap.
LEAST_PART_BYTES = 2**18
_COPY_BYTES = 2**20
# Errors of filesystems that cannot copy inside the kernel.
_NO_KERNEL_COPY = frozenset({EXDEV, ENOSYS, EINVAL, EOPNOTSUPP})


class Keep(Protocol):
    """Callback that makes a verified file a blob; see :class:`adapters.stores.local.LocalStore`."""

    def __call__(self, digest: str, source: Path, *, ours: bool) -> bool: ...


class LocalStaging:
    """:class:`adapters.stores.staging.StagingArea` in a folder, which is created on first use.

    Args:
        root: folder of the staging area.
        temporary: folder on the same filesystem for unfinished files.
        keep: callback that makes a file a blob of the store.
    """

    direct = False
    least_part_bytes = LEAST_PART_BYTES

    def __init__(self, root: Path, temporary: Path, keep: Keep) -> None:
        self._root, self._temporary, self._keep = root, temporary, keep

    def begin(self, upload_id: str, file: str) -> Staged:
        staged = Staged(upload_id, file)
        with disk_errors("begin an upload"):
            new_directory(self._parts(staged))
        return staged

    def put_part(self, staged: Staged, number: int, source: Path, _sha256: str) -> None:
        def fill(path: Path) -> None:
            link_or_copy(source, path)

        with disk_errors("store a part"):
            self._make(self._parts(staged) / str(number), fill)

    def part_url(self, *_args: object, **_kwargs: object) -> PartUrl:
        raise StoreUnavailable("A local store accepts parts only through the server.")

    def parts(self, staged: Staged) -> dict[int, int] | None:
        with disk_errors("list the parts"):
            try:
                sizes = {int(path.name): path.stat().st_size for path in self._parts(staged).iterdir()}
            except FileNotFoundError:
                sizes = None
            # Check this last. Parts are removed once the whole file exists, so a concurrent listing may miss some.
            if self._whole(staged).exists():
                return None
        if sizes is None:
            raise _gone()
        return sizes

    def complete(self, staged: Staged, sizes: Sequence[int]) -> tuple[int, ...]:
        stored_sizes = self.parts(staged)
        if stored_sizes is None:
            return ()
        missing = tuple(number for number, size in enumerate(sizes, 1) if stored_sizes.get(number) != size)
        if missing:
            return missing
        folder = self._parts(staged)

        def join(path: Path) -> None:
            with new_file(path) as whole:
                for number in range(1, len(sizes) + 1):
                    with (folder / str(number)).open("rb") as part:
                        _append(part, whole)

        with disk_errors("join the parts"):
            try:
                self._make(self._whole(staged), join)
            except FileNotFoundError:
                # Another process may have joined the same parts and removed them. Otherwise the upload is gone.
                if not self._whole(staged).exists():
                    raise _gone() from None
            with suppress(FileNotFoundError):
                remove(folder)
        return ()

    def fetch(self, staged: Staged, destination: Path) -> str:
        with disk_errors("fetch an upload"):
            try:
                link_or_copy(self._whole(staged), destination)
            except FileNotFoundError:
                raise _gone() from None
            return file_digest(destination)

    def adopt(self, staged: Staged, digest: str) -> None:
        whole = self._whole(staged)
        with disk_errors("store the bytes"):
            if not whole.exists():
                raise _gone()
        self._keep(digest, whole, ours=True)

    def abort(self, staged: Staged) -> None:
        folder = self._folder(staged)
        with disk_errors("remove an upload"):
            with suppress(FileNotFoundError):
                remove(folder)
            # The upload's files are removed one by one; the last removal also removes the folder.
            with suppress(OSError):
                folder.parent.rmdir()

    def sweep(self, *, before: datetime, keep: Collection[str]) -> int:
        swept = 0
        with disk_errors("sweep old uploads"):
            uploads = list(self._root.iterdir()) if self._root.is_dir() else []
            for upload in uploads:
                if not is_upload_id(upload.name) or upload.name in keep:
                    continue
                with suppress(FileNotFoundError):
                    if upload.lstat().st_mtime < before.timestamp():
                        swept += len(list(upload.iterdir()))
                        remove(upload)
        return swept

    def _folder(self, staged: Staged) -> Path:
        return self._root / staged.upload_id / staged.file

    def _parts(self, staged: Staged) -> Path:
        return self._folder(staged) / "parts"

    def _whole(self, staged: Staged) -> Path:
        return self._folder(staged) / "whole"

    def _make(self, path: Path, fill: Callable[[Path], None]) -> None:
        """Create a file atomically and durably: fill a temporary file, fsync, rename.

        Raises:
            BlobNotFound: the upload is gone.
        """
        temporary = self._temporary / uuid.uuid4().hex
        try:
            fill(temporary)
            sync(temporary)
            try:
                temporary.rename(path)
                sync(path.parent)
            except (FileNotFoundError, NotADirectoryError):
                raise _gone() from None
        finally:
            # A rename onto a link of the same file does nothing and leaves both names.
            temporary.unlink(missing_ok=True)


def _append(part: BinaryIO, whole: BinaryIO) -> None:
    """Append a part with copy_file_range, which may share blocks; fall back to a copy through memory."""
    left = os.fstat(part.fileno()).st_size
    whole.flush()
    try:
        while left and (copied := os.copy_file_range(part.fileno(), whole.fileno(), left)):
            left -= copied
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
    # copy_file_range has advanced both positions. Copy the rest from here.
    while block := os.read(part.fileno(), _COPY_BYTES):
        whole.write(block)
    whole.flush()


def _gone() -> BlobNotFound:
    return BlobNotFound("The store has no such upload.")
