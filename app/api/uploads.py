"""Publishing a version: ``POST .../adapters/{adapter}/versions``, multipart, mounted like the routes on adapters."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from app.api.auth import Owner, ProcessDep, require_owner
from app.api.multipart import receive_upload
from app.api.schemas import VersionOut, answers
from app.registry import Scope

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]

_FILE = {"type": "string", "format": "binary"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [CONFIG_NAME, WEIGHTS_NAME],
                    "properties": {CONFIG_NAME: _FILE, WEIGHTS_NAME: _FILE},
                }
            }
        },
    }
}


@router.post(
    "/{adapter}/versions",
    status_code=201,
    summary="Publish a version: the two files that PEFT saves",
    responses={
        **answers(404, 409, 413),
        200: {"model": VersionOut, "description": "these bytes are a version already"},
    },
    openapi_extra=_BODY,
)
async def publish(adapter: str, owner: Writer, process: ProcessDep, request: Request, response: Response) -> VersionOut:
    await process.publishing.check_target(owner.tenant, adapter)
    content_type = request.headers.get("content-type", "")
    async with process.spool.folder() as folder:
        upload = await receive_upload(request.stream(), content_type, folder, process.settings.limits)
        published = await process.publishing.publish(owner.tenant, adapter, upload, actor=owner.caller.key_id)
    if not published.created:
        response.status_code = 200
    response.headers["location"] = f"{request.url.path}/{published.version.number}"
    return VersionOut.of(published.version)
