"""Resumable uploads as plain data: what an upload is made of, and how its files are cut into parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from adapters.stores.staging import MAX_PARTS

ARCHIVE = "archive"

#: A part is one request, received in one piece or not at all.
MAX_PART_BYTES = 64 * 2**20

#: Larger ones gain nothing: a request costs little against the time that this many bytes take.
_ENOUGH_PART_BYTES = 8 * 2**20

#: What a killed client loses is what it had under way, four parts at most: this many parts keep ten kills under 5%.
_WANTED_PARTS = 800


class UploadState(StrEnum):
    """``open -> finishing -> done | failed``, or back to ``open`` if something did not answer; ``open -> aborted``."""

    OPEN = "open"
    FINISHING = "finishing"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def live(self) -> bool:
        return self in (UploadState.OPEN, UploadState.FINISHING)


@dataclass(frozen=True, slots=True)
class UploadFile:
    """One file of an upload, as its sender has announced it.

    Attributes:
        size: in bytes, at least 1.
        sha256: hex.
        part_bytes: size of every part but the last.
        token: the staging area's, see :class:`adapters.stores.staging.Staged`.
        stored: the store has these bytes already, as a blob of this adapter's; nothing is to be sent.
    """

    size: int
    sha256: str
    part_bytes: int
    token: str = ""
    stored: bool = False

    @property
    def parts(self) -> int:
        return -(-self.size // self.part_bytes)

    @property
    def part_sizes(self) -> list[int]:
        """Size of each part in bytes, in order."""
        last = self.size - (self.parts - 1) * self.part_bytes
        return [self.part_bytes] * (self.parts - 1) + [last]


@dataclass(frozen=True, slots=True)
class UploadSession:
    """An upload under way, or what became of it.

    Attributes:
        adapter: its name; the adapter itself need not exist yet.
        options: ``raw`` as the sender gave them, ``admin`` and ``uploaded_from`` as they were when it began.
        result: number of the version that it became.
        error: why it failed: ``message``, ``reasons``.
        updated_at: last change of state, or sign of life of the server that finishes it.
    """

    id: str
    tenant_id: int
    adapter: str
    state: UploadState
    files: Mapping[str, UploadFile]
    options: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    created_by: str
    result: int | None = None
    error: Mapping[str, Any] | None = None


def chosen_part_bytes(size: int, least: int) -> int:
    """The size of parts for a file: a power of two, unless the store wants larger ones.

    Args:
        size: the file's, in bytes.
        least: the store's smallest part in bytes.
    """
    wanted = min(max(size // _WANTED_PARTS, 1), _ENOUGH_PART_BYTES)
    chosen = max(1 << (wanted.bit_length() - 1), least)
    while -(-size // chosen) > MAX_PARTS:
        chosen *= 2
    return chosen
