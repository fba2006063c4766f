"""Files that tenants upload for batches, and the files that batches write, as frozen data."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


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
