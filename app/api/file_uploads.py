"""OpenAI's uploads of files in parts: ``/v1/uploads``."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.auth import BatchOwner, GatewayDep
from app.api.file_forms import FileForm, receive_file
from app.api.file_schemas import FilePartOut, FileUploadComplete, FileUploadCreate, FileUploadOut
from app.api.schemas import answers
from app.domain.errors import TooLarge
from app.services.files.validation import checked_lifetime, checked_purpose

router = APIRouter(prefix="/v1/uploads", tags=["batches"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"data": {"type": "string", "format": "binary"}},
                    "required": ["data"],
                }
            }
        },
    }
}


@router.post("", summary="Begin an upload of a file in parts", responses=answers(400))
async def create_file_upload(body: FileUploadCreate, owner: BatchOwner, gateway: GatewayDep) -> FileUploadOut:
    """Then add the parts in any order, and complete the upload. An upload that is not completed expires."""
    expires = body.expires_after
    upload = await gateway.file_uploads.create(
        owner.tenant,
        size=body.bytes,
        filename=body.filename,
        mime_type=body.mime_type,
        purpose=checked_purpose(body.purpose),
        lifetime_s=checked_lifetime(
            expires.anchor if expires else None, expires.seconds if expires else None, gateway.settings.batch
        ),
        actor=owner.caller.key_id,
    )
    return FileUploadOut.of(upload)


@router.post(
    "/{upload_id}/parts",
    summary="Add a part to an upload",
    responses=answers(400, 404, 408, 409),
    openapi_extra=_BODY,
)
async def create_file_part(upload_id: str, owner: BatchOwner, gateway: GatewayDep, request: Request) -> FilePartOut:
    """Send a form with the part in `data`, at most 64 MiB. Keep the id in the answer to complete the upload."""
    most_bytes = await gateway.file_uploads.part_room(owner.tenant, upload_id)
    form = FileForm(
        file="data",
        fields=frozenset(),
        most_bytes=most_bytes,
        too_large=TooLarge(f"The part is larger than the {most_bytes} bytes that are left for it.", param="data"),
        idle_s=gateway.settings.limits.upload_idle_seconds,
    )
    content_type = request.headers.get("content-type", "")
    async with gateway.file_spool.folder(owner.tenant) as folder:
        received = await receive_file(request.stream(), content_type, folder, form)
        part = await gateway.file_uploads.add_part(owner.tenant, upload_id, received.file.path)
    return FilePartOut.of(part)


@router.post("/{upload_id}/complete", summary="Join the parts of an upload into a file", responses=answers(400, 404))
async def complete_file_upload(
    upload_id: str, body: FileUploadComplete, owner: BatchOwner, gateway: GatewayDep
) -> FileUploadOut:
    """Name all parts in the order of their bytes. Repeating the call returns the same file."""
    completed = await gateway.file_uploads.complete(
        owner.tenant, upload_id, body.part_ids, md5=body.md5, actor=owner.caller.key_id
    )
    return FileUploadOut.completed(completed)


@router.post("/{upload_id}/cancel", summary="Cancel an upload", responses=answers(404, 409))
async def cancel_file_upload(upload_id: str, owner: BatchOwner, gateway: GatewayDep) -> FileUploadOut:
    """The parts are deleted. An upload that is completed cannot be cancelled; delete its file instead."""
    return FileUploadOut.of(await gateway.file_uploads.cancel(owner.tenant, upload_id, actor=owner.caller.key_id))
