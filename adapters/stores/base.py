"""The port of the blob stores: immutable bytes under their own SHA-256."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from adapters.errors import DigestMismatch
from adapters.stores.staging import StagingArea

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_digest(text: str) -> bool:
    return bool(_DIGEST.fullmatch(text))


def check_digest(digest: str) -> str:
    """Return the digest unchanged. Every path and object key is built from one that went through here.

    Raises:
        DigestMismatch: not 64 lower-case hex digits, so no bytes have it.
    """
    if not is_digest(digest):
        raise DigestMismatch(f"digest: found {digest[:80]!r}, allowed 64 lower-case hex digits")
    return digest


#: Where a store, under its root or prefix, names the registry that it belongs to.
OWNER_NAME = "registry"


def read_owner(content: bytes) -> str:
    """The registry's id in what a store has under ``OWNER_NAME``; of other content what can be shown."""
    return "".join(c for c in content.decode("ascii", errors="replace") if c.isprintable())[:80]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a listing says of a blob: its size in bytes, and when it was last written (UTC)."""

    digest: str
    size: int
    modified_at: datetime


class BlobStore(Protocol):
    """Content-addressed blobs. Every method blocks: call it through ``asyncio.to_thread``.

    A digest is 64 lower-case hex digits of the SHA-256 of the blob's bytes. All implementations
    raise only :class:`adapters.errors.StorageError` leaves.

    Attributes:
        staging: where the parts of resumable uploads gather before they are a blob here.
    """

    @property
    def staging(self) -> StagingArea: ...

    def put(self, digest: str, source: Path) -> bool:
        """Store the file's bytes under its digest; readers see all of it or nothing.

        The bytes are verified on the way. Returns False if the blob was already there; the file is not
        read then. The file must not be written to afterwards, as a store may keep it instead of a copy;
        the caller may unlink it.

        Raises:
            DigestMismatch: the file's bytes are not those that the digest names.
            StoreUnavailable, DiskFull
        """

    def fetch(self, digest: str, destination: Path) -> None:
        """Write the blob's bytes to a new file, mode 0600; after an error there is none.

        The caller verifies the digest and renames.

        Raises:
            BlobNotFound, StoreUnavailable, DiskFull
        """

    def size(self, digest: str) -> int | None:
        """Size in bytes, or None if there is no such blob."""

    def delete(self, digest: str) -> None:
        """Remove the blob; removing what is not there is no error."""

    def list_blobs(self) -> Iterator[BlobInfo]:
        """Every blob, in no order, read page by page as the caller asks for more; those that come or go meanwhile
        may be missed.

        Raises:
            StoreUnavailable: also in the middle.
        """

    def owner(self) -> str | None:
        """The id of the registry whose bytes these are; None: no registry has claimed the store.

        Raises:
            StoreUnavailable
        """

    def claim(self, owner: str) -> str:
        """Note whose store it is, unless somebody has; returns the id that stands, the same for all who claim at once.

        Raises:
            StoreUnavailable, DiskFull
        """

    def take_over(self, owner: str) -> None:
        """Note whose store it is from now on, whoever claimed it before.

        Raises:
            StoreUnavailable, DiskFull
        """

    def check(self) -> None:
        """Prove that the store answers.

        Raises:
            StoreUnavailable
        """
