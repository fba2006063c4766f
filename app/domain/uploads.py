"""Resumable uploads as plain data: sessions, files and their parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from adapters.stores.staging import MAX_PARTS

ARCHIVE = "archive"

#: Maximum size of a part in bytes. One request carries a part, which is received whole or not at all.
MAX_PART_BYTES = 64 * 2**20

#: Largest part size chosen without need, in bytes. The overhead of a request is already negligible at this size.
_ENOUGH_PART_BYTES = 8 * 2**20

#: Target number of parts. A killed client loses at most four parts, so ten kills resend at most 5% of a file.
_TARGET_PARTS = 800


class UploadState(StrEnum):
    """Life cycle of an upload: ``open -> finishing -> done | failed``, or ``open -> aborted``.

    ``finishing`` returns to ``open`` if a dependency did not respond.
    """

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
    """One file of an upload, as announced by the client.

    Attributes:
        size: size in bytes, at least 1.
        sha256: digest, hex.
        part_bytes: size of every part but the last.
        token: token of the staging area, see :class:`adapters.stores.staging.Staged`.
        stored: True if the store has these bytes already as a blob of this adapter, so that nothing is sent.
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
    """An upload in progress or its outcome.

    Attributes:
        adapter: name of the adapter, which need not exist yet.
        options: ``raw`` as the client gave them, ``admin`` and ``uploaded_from`` as recorded at the start.
        result: number of the resulting version.
        error: reason of the failure: ``message``, ``reasons``.
        updated_at: time of the last state change, or of the last heartbeat of the server that finishes it.
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
    """Choose the part size of a file in bytes: a power of two, unless the store's minimum is larger.

    Args:
        size: size of the file in bytes.
        least: the store's minimum part size in bytes.
    """
    target_bytes = min(max(size // _TARGET_PARTS, 1), _ENOUGH_PART_BYTES)
    part_bytes = max(1 << (target_bytes.bit_length() - 1), least)
    while -(-size // part_bytes) > MAX_PARTS:
        part_bytes *= 2
    return part_bytes
