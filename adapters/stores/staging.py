"""The port of the staging areas: where the parts of an upload gather until the file is whole and checked.

Every store has one, as adopting a file must not move its bytes again. What an upload's file goes through::

    begin -> put_part, or a part_url that the client sends to, any order, again and again
          -> complete (whole, or which parts are missing) -> fetch (to check it) -> adopt (now a blob) -> abort

``abort`` is the end of every upload; what a crash leaves in the area is found by ``sweep``. What was received is
asked of the area itself, so that no second list of it can be wrong.
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
    """A file that is being received.

    Attributes:
        upload_id: 32 lower-case hex digits; an upload may have several files.
        file: its name, lower case.
        token: what the area needs to find it again (S3's own id of the upload); empty for a folder.

    Raises:
        InvalidName: an id or a name of another shape. Every path and key is built from those that came through here.
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
    """Leave to send one part straight to the store, once or again, until it expires.

    Attributes:
        url: for PUT; it holds a signature, so whoever has it may send.
        headers: to be sent exactly so; they are signed too.
    """

    url: str
    headers: Mapping[str, str]


class StagingArea(Protocol):
    """Where parts gather. Every method blocks: call it through ``asyncio.to_thread``.

    Parts have the numbers 1 to ``MAX_PARTS``. All implementations raise only
    :class:`adapters.errors.StorageError` leaves, BlobNotFound for a file that was never begun or is gone.

    Attributes:
        direct: whether clients send parts straight to the store, with ``part_url``.
        least_part_bytes: smallest size of a part that is not its file's last, in bytes.
    """

    @property
    def direct(self) -> bool: ...

    @property
    def least_part_bytes(self) -> int: ...

    def begin(self, upload_id: str, file: str) -> Staged:
        """Make room for a file."""

    def put_part(self, staged: Staged, number: int, source: Path, sha256: str, /) -> None:
        """Take a part from a file that has this SHA-256 (hex), as the caller has verified; it replaces an earlier one.

        The source must not be written to afterwards; the caller may unlink it.
        """

    def part_url(self, staged: Staged, number: int, *, size: int, sha256: str, lifetime_s: int) -> PartUrl:
        """A URL that takes exactly this part, of this size and SHA-256 (hex), and nothing else."""

    def parts(self, staged: Staged) -> dict[int, int] | None:
        """The parts that are there: number -> size in bytes. None: they have become the whole file."""

    def complete(self, staged: Staged, sizes: Sequence[int]) -> tuple[int, ...]:
        """Make the file out of its parts, whose sizes in order are given. May be repeated.

        Returns:
            The numbers of parts that are missing or of another size, and then nothing has changed; () if it is whole.
        """

    def fetch(self, staged: Staged, destination: Path) -> str:
        """Write the whole file to a new file, mode 0600, which must only be read; returns its SHA-256 (hex)."""

    def adopt(self, staged: Staged, digest: str) -> None:
        """Make the whole file the blob of this digest, which ``fetch`` has told; does nothing if the blob exists.

        The file stays in the area until ``abort``.
        """

    def abort(self, staged: Staged) -> None:
        """Forget the file and its parts; what is not there is no error."""

    def sweep(self, *, before: datetime, keep: Collection[str]) -> int:
        """Remove what was begun before a moment and belongs to none of these uploads; returns how many files it was."""


def is_upload_id(text: str) -> bool:
    return bool(_UPLOAD_ID.fullmatch(text))
