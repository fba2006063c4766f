"""OpenAI's files: ``/v1/files``."""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from app.api.auth import BatchOwner, GatewayDep
from app.api.file_answer import BINARY, FileAnswer
from app.api.file_forms import FileForm, receive_file
from app.api.file_schemas import DeletedFileOut, FileOut, FilesOut
from app.api.schemas import answers
from app.domain.errors import InvalidRequest
from app.domain.files import MAX_LIFETIME_S, MIN_LIFETIME_S
from app.services.files.validation import ANCHOR, checked_lifetime, checked_purpose

router = APIRouter(prefix="/v1/files", tags=["batches"])

MAX_LIMIT = 10_000

_PURPOSE, _ANCHOR, _SECONDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        _PURPOSE: {"type": "string", "enum": ["batch"]},
                        _ANCHOR: {"type": "string", "enum": [ANCHOR]},
                        _SECONDS: {"type": "integer", "minimum": MIN_LIFETIME_S, "maximum": MAX_LIFETIME_S},
                    },
                    "required": ["file", _PURPOSE],
                }
            }
        },
    }
}


@router.post("", summary="Upload a file of requests for a batch", responses=answers(400, 408), openapi_extra=_BODY)
async def create_file(owner: BatchOwner, gateway: GatewayDep, request: Request) -> FileOut:
    """Send a form with `purpose`, which is `batch`, and `file`: one request a line, as JSON.

    The lines are checked when a batch is created. The file is deleted after 30 days, or after `expires_after`.
    """
    room = await gateway.files.room(owner.tenant)
    form = FileForm(
        file="file",
        fields=frozenset({_PURPOSE, _ANCHOR, _SECONDS}),
        most_bytes=room.bytes,
        too_large=room.refusal,
        idle_s=gateway.settings.limits.upload_idle_seconds,
        check=_check_early,
    )
    content_type = request.headers.get("content-type", "")
    async with gateway.file_spool.folder(owner.tenant) as folder:
        received = await receive_file(request.stream(), content_type, folder, form)
        fields = received.fields
        if _PURPOSE not in fields:
            raise InvalidRequest("The form has no field purpose. Send purpose=batch.", param=_PURPOSE)
        file = await gateway.files.create(
            owner.tenant,
            received.file.path,
            purpose=checked_purpose(fields[_PURPOSE]),
            filename=received.filename,
            lifetime_s=checked_lifetime(fields.get(_ANCHOR), fields.get(_SECONDS), gateway.settings.batch),
            actor=owner.caller.key_id,
        )
    return FileOut.of(file)


@router.get("", summary="List files", responses=answers(404))
async def list_files(
    owner: BatchOwner,
    gateway: GatewayDep,
    purpose: Annotated[str | None, Query(description="Show only files with this purpose")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of files")] = MAX_LIMIT,
    order: Annotated[Literal["asc", "desc"], Query(description="Order by the time of creation")] = "desc",
    after: Annotated[str | None, Query(description="Id of the last file of the previous page")] = None,
) -> FilesOut:
    """The list has the files of the key's tenant, the newest first unless `order` is `asc`."""
    page = await gateway.files.list_files(
        owner.tenant, purpose=purpose, after=after, ascending=order == "asc", limit=limit
    )
    return FilesOut.of(page.files, has_more=page.has_more)


@router.get("/{file_id}", summary="Show a file", responses=answers(404))
async def get_file(file_id: str, owner: BatchOwner, gateway: GatewayDep) -> FileOut:
    """The answer has no content; `/v1/files/{file_id}/content` has it."""
    return FileOut.of(await gateway.files.get(owner.tenant, file_id))


@router.get(
    "/{file_id}/content",
    summary="Download a file",
    response_class=Response,
    responses={
        **answers(404),
        200: {
            "description": "Bytes of the file, with their SHA-256 in `repr-digest`",
            "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
async def download_file(file_id: str, owner: BatchOwner, gateway: GatewayDep) -> Response:
    """The bytes are those of the upload, or the results of a batch. Ranges are not supported."""
    async with contextlib.AsyncExitStack() as opening:
        opened = await opening.enter_async_context(gateway.files.open(owner.tenant, file_id))
        return FileAnswer(
            opened.path,
            name=opened.file.filename,
            size=opened.file.bytes,
            digest=opened.file.sha256,
            media_type=BINARY,
            holds=opening.pop_all(),
        )


@router.delete("/{file_id}", summary="Delete a file", responses=answers(404, 409))
async def delete_file(file_id: str, owner: BatchOwner, gateway: GatewayDep, response: Response) -> DeletedFileOut:
    """No route shows the file any more. `deletion` reports when the bytes are gone from every server and the store.

    A file that an unfinished batch reads cannot be deleted.
    """
    deletion = await gateway.files.delete(owner.tenant, file_id, actor=owner.caller.key_id)
    response.headers["location"] = f"/v1/deletions/{deletion}"
    return DeletedFileOut(id=file_id, deletion=deletion)


def _check_early(fields: Mapping[str, str]) -> None:
    if _PURPOSE in fields:
        checked_purpose(fields[_PURPOSE])
