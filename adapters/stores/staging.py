"""Port of the staging areas, which collect the parts of an upload until the file is complete and verified.

Every store has an area, because adopting a file must not move its bytes again. Life of an upload's file::

    begin -> put_part, or a part_url that the client sends to; in any order, repeatable
          -> complete (whole, or the missing parts) -> fetch (to verify it) -> adopt (now a blob) -> abort

Every upload ends with ``abort``. ``sweep`` finds files left by a crash. The area itself is the only record of received
parts, so no second list can disagree.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from adapters.errors import InvalidName

#: Parts of one file; S3's own limit.
MAX_PARTS = 10_000

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FILE = re.compile(r"[a-z][a-z0-9_.]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Staged:
    """File that is being received.

    Attributes:
        upload_id: 32 lower-case hex digits; an upload may have several files.
        file: name of the file, lower case.
        token: handle by which the area finds it again (S3's upload id); empty for a folder.

    Raises:
        InvalidName: an invalid id or name. Every path and key is built from checked values.
    """

    upload_id: str
    file: str
    token: str = ""

    def __post_init__(self) -> None:
        if not is_upload_id(self.upload_id):
            raise InvalidName("upload", self.upload_id[:80], "32 lower-case hex digits")
        if not _FILE.fullmatch(self.file):
            raise InvalidName("file", self.file[:80], "a lower-case file name of 1 to 63 characters")


@dataclass(frozen=True, slots=True)
class PartUrl:
    """Permission to send one part directly to the store, repeatable until it expires.

    Attributes:
        url: URL for PUT; its signature authorises any holder.
        headers: headers to send exactly; they are signed too.
    """

    url: str
    headers: Mapping[str, str]


class StagingArea(Protocol):
    """Area that collects parts. Every method blocks: call it through ``asyncio.to_thread``.

    Parts have the numbers 1 to ``MAX_PARTS``. All implementations raise only :class:`adapters.errors.StorageError`
    leaves. BlobNotFound means that a file was never begun or is gone.

    Attributes:
        direct: whether clients send parts directly to the store, with ``part_url``.
        least_part_bytes: minimum size in bytes of every part but a file's last.
    """

    @property
    def direct(self) -> bool: ...

    @property
    def least_part_bytes(self) -> int: ...

    def begin(self, upload_id: str, file: str) -> Staged:
        """Start a file."""

    def put_part(self, staged: Staged, number: int, source: Path, sha256: str, /) -> None:
        """Store a part from a file, replacing an earlier one of this number.

        The caller has verified the file's SHA-256 (hex). The source must not be written to afterwards. The caller may
        unlink it.
        """

    def part_url(self, staged: Staged, number: int, *, size: int, sha256: str, lifetime_s: int) -> PartUrl:
        """Return a URL that accepts only this part, with this size in bytes and SHA-256 (hex)."""

    def parts(self, staged: Staged) -> dict[int, int] | None:
        """Return the received parts: number -> size in bytes; None if they have become the whole file."""

    def complete(self, staged: Staged, sizes: Sequence[int]) -> tuple[int, ...]:
        """Join the parts into the whole file. Idempotent.

        Args:
            sizes: size of each part in bytes, in order.

        Returns:
            The numbers of parts that are missing or of another size, with nothing changed; () if the file is whole.
        """

    def fetch(self, staged: Staged, destination: Path) -> str:
        """Write the whole file to a new file with mode 0600, which must only be read; return its SHA-256 (hex)."""

    def adopt(self, staged: Staged, digest: str) -> None:
        """Make the whole file the blob of this digest, which ``fetch`` returned. Does nothing if the blob exists.

        The file stays in the area until ``abort``.
        """

    def abort(self, staged: Staged) -> None:
        """Remove the file and its parts. Idempotent."""

    def sweep(self, *, before: datetime, keep: Collection[str]) -> int:
        """Remove files begun before a time, except files of the uploads in ``keep``.

        Returns:
            The number of files removed.
        """


def is_upload_id(text: str) -> bool:
    return bool(_UPLOAD_ID.fullmatch(text))
