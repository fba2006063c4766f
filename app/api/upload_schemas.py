"""JSON schemas of resumable uploads."""

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from adapters.errors import Reason
from adapters.stores.staging import PartUrl
from app.api.openapi_components import Absent
from app.api.schemas import ReasonOut
from app.domain.uploads import UploadSession
from app.served_base import ServedBase as Base
from app.services.publishing.uploads.sessions import MAX_URLS, URL_LIFETIME_S, Progress


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PublishOptions(_Body):
    """Options of an upload, an archive, an import or a merge."""

    alias: str | None = Field(
        None, description="Alias to move once the version is ready; null: none. Default: `default`, for a merge none"
    )
    labels: dict[str, str] | Absent = Field(None, description="Name -> value")
    card: str | Absent = Field(None, description="Free text about the version, shown as plain text")
    training_run: str | None = Field(None, description="HTTP or HTTPS link to the training run")
    defaults: dict[str, Any] | Absent = Field(None, description="Default values of request fields")
    allow_no_effect: bool | Absent = Field(None, description="Whether to keep a version that answers as the base does")
    wait: bool | Absent = Field(None, description="Whether the answer waits for the smoke check; default: true")


class AnnouncedFile(_Body):
    size: int = Field(description="Size in bytes")
    sha256: str = Field(description="SHA-256 of the file, 64 hex digits")


class UploadCreate(_Body):
    files: dict[str, AnnouncedFile] = Field(
        description="`adapter_config.json` and `adapter_model.safetensors`, or `archive`: a .tar.gz or .zip of both"
    )
    part_bytes: int | None = Field(
        None, description="Size of every part but the last, in bytes; default: chosen by the server"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options as for publishing a version")


class UploadFileOut(BaseModel):
    size: int
    sha256: str
    part_bytes: int = Field(description="Size of every part but the last, in bytes")
    parts: int = Field(description="Number of parts. Parts are numbered from 1.")
    received: list[int] = Field(description="Numbers of the parts that have arrived")
    direct: bool = Field(description="Whether parts can be sent directly to the store, to URLs from the server")


class UploadBaseOut(BaseModel):
    """The base model that a version will be validated against."""

    name: str
    chat_template_sha256: str | None = Field(
        description="SHA-256 of its chat template without surrounding white space; null: it has no chat template"
    )


class UploadOut(BaseModel):
    id: str
    adapter: str
    state: str = Field(description="State: open, finishing, done, failed or aborted")
    files: dict[str, UploadFileOut]
    options: dict[str, Any]
    version: int | None = Field(description="Number of the published version")
    reasons: list[ReasonOut] | None = Field(description="Reasons why it failed")
    created_at: datetime
    expires_at: datetime
    base: UploadBaseOut

    @classmethod
    def of(cls, progress: Progress, base: Base) -> Self:
        session = progress.session
        return cls(
            **_described(session),
            files=_files(progress),
            reasons=_reasons(session),
            base=UploadBaseOut(name=base.name, chat_template_sha256=base.template_digest),
        )


class ListedFileOut(BaseModel):
    size: int
    sha256: str
    part_bytes: int
    parts: int


class ListedUploadOut(BaseModel):
    """An upload in a list, without its received parts."""

    id: str
    adapter: str
    state: str
    files: dict[str, ListedFileOut]
    options: dict[str, Any]
    version: int | None
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, session: UploadSession) -> Self:
        files = {
            name: ListedFileOut(size=file.size, sha256=file.sha256, part_bytes=file.part_bytes, parts=file.parts)
            for name, file in session.files.items()
        }
        return cls(**_described(session), files=files)


class UploadListOut(BaseModel):
    data: list[ListedUploadOut] = Field(description="Unfinished uploads, newest first")


class WantedPart(_Body):
    number: int
    sha256: str = Field(description="SHA-256 of the part, 64 hex digits")


class PartUrlsRequest(_Body):
    parts: list[WantedPart] = Field(min_length=1, max_length=MAX_URLS)


class PartUrlOut(BaseModel):
    number: int
    url: str = Field(description="URL for one PUT of the part's bytes. The URL itself authorizes the request.")
    headers: dict[str, str] = Field(description="Headers to send unchanged with the PUT")


class PartUrlsOut(BaseModel):
    urls: list[PartUrlOut]
    expires_in_s: int

    @classmethod
    def of(cls, urls: dict[int, PartUrl]) -> Self:
        shown = [PartUrlOut(number=n, url=part.url, headers=dict(part.headers)) for n, part in urls.items()]
        return cls(urls=shown, expires_in_s=URL_LIFETIME_S)


def _described(session: UploadSession) -> dict[str, Any]:
    return {
        "id": session.id,
        "adapter": session.adapter,
        "state": session.state.value,
        "options": session.options["raw"],
        "version": session.result,
        "created_at": session.created_at,
        "expires_at": session.expires_at,
    }


def _files(progress: Progress) -> dict[str, UploadFileOut]:
    return {
        name: UploadFileOut(
            size=file.size,
            sha256=file.sha256,
            part_bytes=file.part_bytes,
            parts=file.parts,
            received=list(progress.received[name]),
            direct=progress.direct,
        )
        for name, file in progress.session.files.items()
    }


def _reasons(session: UploadSession) -> list[ReasonOut] | None:
    if session.error is None:
        return None
    return [ReasonOut(**Reason.read(reason).shown()) for reason in session.error["reasons"]]
