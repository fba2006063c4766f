"""The port of the blob stores: immutable bytes under their own SHA-256."""

from pathlib import Path
from typing import Protocol


class BlobStore(Protocol):
    """Content-addressed blobs. Every method blocks: call it through ``asyncio.to_thread``.

    A digest is 64 lower-case hex digits of the SHA-256 of the blob's bytes. All implementations
    raise only :class:`adapters.errors.StorageError` leaves.
    """

    def put(self, digest: str, source: Path) -> bool:
        """Store the file's bytes under its digest; readers see all of it or nothing.

        The bytes are verified on the way (checksum or hash). Returns False if the blob was already there.

        Raises:
            DigestMismatch: the file's bytes are not those that the digest names.
            StoreUnavailable, DiskFull
        """

    def fetch(self, digest: str, destination: Path) -> None:
        """Write the blob's bytes to a new file. The caller verifies the digest and renames.

        Raises:
            BlobNotFound, StoreUnavailable, DiskFull
        """

    def size(self, digest: str) -> int | None:
        """Size in bytes, or None if there is no such blob."""

    def delete(self, digest: str) -> None:
        """Remove the blob; removing what is not there is no error."""

    def check(self) -> None:
        """Prove that the store answers.

        Raises:
            StoreUnavailable
        """
