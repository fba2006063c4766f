"""JSON schemas of files and uploads, as OpenAI's clients expect them."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.files import FilePart, FileUpload, StoredFile
from app.services.files.uploads import CompletedUpload

_REQUEST = ConfigDict(extra="forbid", frozen=True, strict=True)


def unix(moment: datetime) -> int:
    """Return a time as Unix time in whole seconds."""
    return int(moment.timestamp())


class FileOut(BaseModel):
    """OpenAI's file object."""

    id: str
    object: Literal["file"] = "file"
    bytes: int = Field(description="Size in bytes")
    created_at: int = Field(description="Unix time in seconds")
    expires_at: int = Field(description="Unix time in seconds after which the file is deleted")
    filename: str = Field(description="Name of the file, without path and unprintable characters")
    purpose: Literal["batch", "batch_output"] = Field(description="`batch` for inputs, `batch_output` for results")
    status: Literal["processed"] = "processed"

    @classmethod
    def of(cls, file: StoredFile) -> Self:
        return cls(
            id=file.id,
            bytes=file.bytes,
            created_at=unix(file.created_at),
            expires_at=unix(file.expires_at),
            filename=file.filename,
            purpose=file.purpose.value,
        )


class FilesOut(BaseModel):
    """One page of files."""

    object: Literal["list"] = "list"
    data: list[FileOut]
    first_id: str | None = Field(description="Id of the first file; null for an empty page")
    last_id: str | None = Field(description="Id of the last file, for `after`; null for an empty page")
    has_more: bool

    @classmethod
    def of(cls, files: tuple[StoredFile, ...], *, has_more: bool) -> Self:
        data = [FileOut.of(file) for file in files]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=has_more)


class DeletedFileOut(BaseModel):
    """OpenAI's answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
    deletion: str = Field(description="Id of the deletion; `/v1/deletions/{deletion}` reports when the bytes are gone")


class ExpiresAfter(BaseModel):
    """Lifetime of a file."""

    model_config = _REQUEST

    anchor: str = Field(description="Always `created_at`")
    seconds: int = Field(description="Seconds from the creation of the file, 3600 (1 hour) to 2592000 (30 days)")


class FileUploadCreate(BaseModel):
    """An upload of a file in parts."""

    model_config = _REQUEST

    bytes: int = Field(description="Size of the whole file in bytes")
    filename: str = Field(description="Name of the file", max_length=4096)
    mime_type: str = Field(description="Media type of the file; it is not checked", max_length=100)
    purpose: str = Field(description="Always `batch`")
    expires_after: ExpiresAfter | None = Field(None, description="Lifetime of the file; default: that of the settings")


class FileUploadComplete(BaseModel):
    """The parts of an upload, in the order of their bytes."""

    model_config = _REQUEST

    part_ids: list[str] = Field(description="Ids of all parts, in order", min_length=1, max_length=1000)
    md5: str | None = Field(None, description="MD5 of the whole file in hex, to be verified")


class FileUploadOut(BaseModel):
    """OpenAI's upload object."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int = Field(description="Size of the whole file in bytes")
    created_at: int = Field(description="Unix time in seconds")
    expires_at: int = Field(description="Unix time in seconds after which the upload takes no more parts")
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileOut | None = Field(description="The file, once the upload is completed")

    @classmethod
    def of(cls, upload: FileUpload, file: StoredFile | None = None) -> Self:
        return cls(
            id=upload.id,
            bytes=upload.bytes,
            created_at=unix(upload.created_at),
            expires_at=unix(upload.expires_at),
            filename=upload.filename,
            purpose=upload.purpose.value,
            status=upload.state.value,
            file=None if file is None else FileOut.of(file),
        )

    @classmethod
    def completed(cls, completed: CompletedUpload) -> Self:
        return cls.of(completed.upload, completed.file)


class FilePartOut(BaseModel):
    """OpenAI's part object."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int = Field(description="Unix time in seconds")
    upload_id: str

    @classmethod
    def of(cls, part: FilePart) -> Self:
        return cls(id=part.id, created_at=unix(part.created_at), upload_id=part.upload_id)
