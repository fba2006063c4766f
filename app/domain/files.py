"""Files that tenants upload for batches, and the files that batches write, as frozen data."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: Maximum length of a file's name in characters, and the name of a file without one.
MAX_NAME = 255
UNNAMED = "file"

#: Bounds of a file's lifetime in seconds, as OpenAI has them: one hour and 30 days.
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 24 * 3600

_ID = re.compile("file-[0-9a-f]{32}", re.ASCII)
_UPLOAD_ID = re.compile("upload_[0-9a-f]{32}", re.ASCII)


class Purpose(StrEnum):
    """Use of a file; tenants upload files for ``batch`` only."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file.

    Attributes:
        id: ``file-`` and 32 hex digits.
        bytes: size of the content.
        sha256: digest of the content, hex.
        digest: digest of the blob in the store, which is the compressed content; unique to this file.
        expires_at: time after which the file is deleted.
        deleted_at: time of the request to delete it; its bytes may still be there.
    """

    id: str
    tenant_id: int
    purpose: Purpose
    filename: str
    bytes: int
    sha256: str
    digest: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    deleted_at: datetime | None = None


def is_file_id(text: str) -> bool:
    """Return whether a text has the form of a file's id."""
    return bool(_ID.fullmatch(text))


def is_upload_id(text: str) -> bool:
    """Return whether a text has the form of an upload's id."""
    return bool(_UPLOAD_ID.fullmatch(text))


def shown_name(name: str) -> str:
    """Clean a file's name for display: the last part of a path, printable characters only, at most 255 of them.

    Characters that change the direction of text, such as U+202E, are not printable.
    """
    last = re.split(r"[/\\]", name)[-1]
    printable = "".join(character for character in last if character.isprintable()).strip()
    return printable[:MAX_NAME].rstrip() or UNNAMED


class FileUploadState(StrEnum):
    """Life cycle of an upload in parts: ``pending -> completed | cancelled | expired``."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class FileUpload:
    """An upload of one file in parts.

    Attributes:
        id: ``upload_`` and 32 hex digits.
        bytes: size of the file as announced.
        lifetime_s: seconds from the file's creation to its expiry.
        file_id: the file; None until the upload is completed.
        expires_at: time after which no part is accepted.
    """

    id: str
    tenant_id: int
    state: FileUploadState
    purpose: Purpose
    filename: str
    mime_type: str
    bytes: int
    lifetime_s: int
    created_at: datetime
    created_by: str
    expires_at: datetime
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A received part, ``part_`` and 32 hex digits; ``digest`` is that of its blob in the store."""

    id: str
    upload_id: str
    bytes: int
    digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class FileUsage:
    """Number of files, and their size together in bytes."""

    files: int
    bytes: int
