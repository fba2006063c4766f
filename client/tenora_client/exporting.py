"""Write what is downloaded: all of it or nothing, with checked digests."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tenora_client.digests import content_digest
from tenora_client.errors import TenoraError
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE

_REPR_DIGEST = re.compile(r"(?:.*,)?\s*sha-256=:([A-Za-z0-9+/=]+):.*", re.ASCII)


class DamagedDownload(TenoraError):
    """A downloaded file is not the one that the server has."""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes ``folder`` once the block ends well, and is removed if not.

    Raises:
        OSError: ``folder`` is not empty, or cannot be made.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(errno.ENOTEMPTY, "The folder is not empty. Give a new or an empty one", str(folder))
    part = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    part.mkdir(parents=True)
    try:
        yield part
        if folder.is_dir():
            folder.rmdir()  # fails if a file came meanwhile
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


class ExportedFile:
    """File that is hashed while it is written.

    Args:
        shown: name for messages; None: that of the file.

    Raises (every method):
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path, name: str, shown: str | None = None) -> None:
        self._name, self._digest, self._file = shown or name, hashlib.sha256(), (folder / name).open("xb")

    def __enter__(self) -> ExportedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        self._digest.update(chunk)
        self._file.write(chunk)

    def checked(self, headers: Mapping[str, str]) -> str:
        """Return the SHA-256 (hex) of the file.

        Raises:
            DamagedDownload: it differs from the one that the server sent.
        """
        if self._digest.digest() != _header_digest(headers.get("repr-digest", "")):
            raise DamagedDownload(f"{self._name} does not match the digest that the server sent with it. Try again.")
        return self._digest.hexdigest()


def check_version(expected: str, digests: Mapping[str, str]) -> None:
    """Compare the digests (hex) of both files with that of the version.

    Raises:
        DamagedDownload: they differ.
    """
    if f"sha256:{content_digest(digests[CONFIG_FILE], digests[WEIGHTS_FILE])}" != expected:
        raise DamagedDownload(f"The files do not match the version's digest {expected}. Try again.")


def _header_digest(header: str) -> bytes | None:
    match = _REPR_DIGEST.fullmatch(header)
    try:
        return base64.b64decode(match[1], validate=True) if match else None
    except binascii.Error:
        return None
