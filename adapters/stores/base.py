"""Port of the blob stores: immutable bytes, addressed by their SHA-256."""

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
    """Validate a digest and return it unchanged. Every path and object key is built from a checked digest.

    Raises:
        DigestMismatch: not 64 lower-case hex digits, so no bytes can have it.
    """
    if not is_digest(digest):
        raise DigestMismatch(f"{digest[:80]!r} is not a digest. A digest has 64 lower-case hex digits.")
    return digest


#: Name, under a store's root or prefix, of the object that holds the id of its registry.
OWNER_NAME = "registry"


def read_owner(content: bytes) -> str:
    """Decode the content of ``OWNER_NAME`` into a registry's id; for other content, keep the printable part."""
    return "".join(c for c in content.decode("ascii", errors="replace") if c.isprintable())[:80]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """Listing entry of a blob: its size in bytes, and the time of its last write (UTC)."""

    digest: str
    size: int
    modified_at: datetime


class BlobStore(Protocol):
    """Content-addressed blobs. Every method blocks: call it through ``asyncio.to_thread``.

    A digest is the SHA-256 of the blob's bytes as 64 lower-case hex digits. All implementations raise only
    :class:`adapters.errors.StorageError` leaves. Every method can raise StoreUnavailable. A method that takes a
    malformed digest raises DigestMismatch.

    Attributes:
        staging: area that collects the parts of resumable uploads before they become a blob.
    """

    @property
    def staging(self) -> StagingArea: ...

    def put(self, digest: str, source: Path) -> bool:
        """Store the file's bytes under its digest, atomically.

        The bytes are verified while they are stored. If the blob exists, the file is not read. The file must not be
        written to afterwards, because a store may keep the file itself. The caller may unlink it.

        Returns:
            False if the blob already existed.

        Raises:
            DigestMismatch: the file's bytes do not match the digest.
            DiskFull: this node's disk has no room.
        """

    def fetch(self, digest: str, destination: Path) -> None:
        """Write the blob's bytes to a new file with mode 0600. After an error no file remains.

        The caller verifies the digest and renames the file.

        Raises:
            BlobNotFound: there is no such blob.
            DiskFull: this node's disk has no room.
        """

    def size(self, digest: str) -> int | None:
        """Return the size in bytes, or None if there is no such blob."""

    def delete(self, digest: str) -> None:
        """Remove the blob. Idempotent."""

    def list_blobs(self) -> Iterator[BlobInfo]:
        """Iterate over all blobs, in no order, fetched page by page.

        Blobs created or deleted during the iteration may be missed. The iteration can raise StoreUnavailable midway.
        """

    def owner(self) -> str | None:
        """Return the id of the registry that owns the store; None if no registry has claimed it."""

    def claim(self, owner: str) -> str:
        """Claim the store for a registry, unless it is claimed already.

        Returns:
            The id of the owner, the same for all concurrent claims.

        Raises:
            DiskFull: this node's disk has no room.
        """

    def take_over(self, owner: str) -> None:
        """Set the store's owner, even if another registry has claimed it.

        Raises:
            DiskFull: this node's disk has no room.
        """

    def check(self) -> None:
        """Check that the store answers; raise StoreUnavailable otherwise."""
