"""Resumable uploads: ``.../adapters/{adapter}/uploads``, mounted with the adapter routes.

Begin an upload, send its parts in any order (to this server or directly to the store), then finish it.
"""

import base64
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from adapters.stores.base import is_digest
from adapters.stores.staging import MAX_PARTS
from app.api.auth import GatewayDep, Owner, require_owner
from app.api.schemas import VersionOut, answers
from app.api.upload_schemas import ListedUploadOut, PartUrlsOut, PartUrlsRequest, UploadCreate, UploadListOut, UploadOut
from app.api.uploads import publish_options, version_answer
from app.domain.access import Scope
from app.domain.errors import InvalidRequest
from app.services.publishing.uploads.validation import Announced

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
UploadId = Annotated[str, Path(description="Id of the upload")]
File = Annotated[str, Path(description="Name of the file in the upload")]
Number = Annotated[int, Path(ge=1, le=MAX_PARTS, description="Number of the part, starting at 1")]
Digest = Annotated[
    str | None, Header(alias="content-digest", description="Digest of this body (RFC 9530): `sha-256=:<base64>:`")
]

# RFC 9530 allows several algorithms in one header; 32 bytes in base64 end with one `=`.
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):\s*(?:,|$)", re.ASCII)
_BYTES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(
    "/{adapter}/uploads",
    status_code=201,
    summary="Begin a resumable upload of a version",
    responses=answers(400, 404),
)
async def create_upload(
    adapter: str, body: UploadCreate, owner: Writer, gateway: GatewayDep, request: Request, response: Response
) -> UploadOut:
    """Announce size and SHA-256 of each file.

    Then send the parts in any order, and finish the upload. Unfinished uploads expire.
    """
    await gateway.publishing.check_target(owner.tenant, adapter)
    checked = publish_options(body.options, request, owner, gateway.settings.limits, source={})
    await gateway.prompts.check(checked.defaults, owner=owner.tenant)
    progress = await gateway.uploads.begin(
        owner.tenant,
        adapter,
        {name: Announced(file.size, file.sha256) for name, file in body.files.items()},
        {
            "raw": body.options,
            "admin": Scope.ADMIN in owner.caller.scopes,
            "uploaded_from": checked.uploaded_from,
        },
        part_bytes=body.part_bytes,
        actor=owner.caller.key_id,
    )
    response.headers["location"] = f"{request.url.path}/{progress.session.id}"
    return UploadOut.of(progress, gateway.base)


@router.get("/{adapter}/uploads", summary="List an adapter's unfinished uploads", responses=answers(404))
async def list_uploads(adapter: str, owner: Writer, gateway: GatewayDep) -> UploadListOut:
    """The list has no parts. Show an upload to see which of its parts have arrived."""
    sessions = await gateway.uploads.list_live(owner.tenant, adapter)
    return UploadListOut(data=[ListedUploadOut.of(session) for session in sessions])


@router.get("/{adapter}/uploads/{upload}", summary="Show an upload and its received parts", responses=answers(404))
async def get_upload(adapter: str, upload: UploadId, owner: Writer, gateway: GatewayDep) -> UploadOut:
    """To resume after an interruption, send the parts that are missing in `received`."""
    return UploadOut.of(await gateway.uploads.show(owner.tenant, adapter, upload), gateway.base)


@router.put(
    "/{adapter}/uploads/{upload}/files/{file}/parts/{number}",
    status_code=204,
    summary="Send a part, or replace it",
    responses=answers(400, 404, 408, 409),
    openapi_extra=_BYTES,
)
async def put_upload_part(
    adapter: str,
    upload: UploadId,
    file: File,
    number: Number,
    owner: Writer,
    gateway: GatewayDep,
    request: Request,
    content_digest: Digest = None,
) -> None:
    """The header `content-digest` is required. A part that arrives again replaces the earlier one."""
    sha256 = _sha256(content_digest)
    await gateway.parts.receive(owner.tenant, adapter, upload, file, number, request.stream(), sha256=sha256)


@router.post(
    "/{adapter}/uploads/{upload}/files/{file}/urls",
    summary="Get URLs for sending parts directly to the store",
    responses=answers(400, 404, 409),
)
async def create_part_urls(
    adapter: str, upload: UploadId, file: File, body: PartUrlsRequest, owner: Writer, gateway: GatewayDep
) -> PartUrlsOut:
    """Each URL accepts one PUT of a part's bytes with the headers in the answer.

    This needs a store that supports it: `direct` is true.
    """
    digests = {part.number: _hex(part.sha256) for part in body.parts}
    return PartUrlsOut.of(await gateway.uploads.part_urls(owner.tenant, adapter, upload, file, digests))


@router.post(
    "/{adapter}/uploads/{upload}/finish",
    status_code=201,
    summary="Finish an upload and publish it as a version",
    responses={
        **answers(400, 404, 409),
        200: {"model": VersionOut, "description": "A version with these bytes already exists"},
        202: {"model": VersionOut, "description": "`wait` is false and the smoke check still runs"},
    },
)
async def finish_upload(
    adapter: str, upload: UploadId, owner: Writer, gateway: GatewayDep, request: Request, response: Response
) -> VersionOut:
    """All parts must have arrived. The version is checked and published as in a single upload."""
    published = await gateway.finisher.finish(owner.tenant, adapter, upload)
    versions_path = request.url.path.rpartition("/uploads/")[0] + "/versions"
    return version_answer(published, response, gateway.base, versions_path=versions_path)


@router.delete("/{adapter}/uploads/{upload}", status_code=204, summary="Abort an upload", responses=answers(404, 409))
async def abort_upload(adapter: str, upload: UploadId, owner: Writer, gateway: GatewayDep) -> None:
    """The parts are removed from the store. A finished upload cannot be aborted."""
    await gateway.uploads.abort(owner.tenant, adapter, upload, actor=owner.caller.key_id)


def _sha256(header: str | None) -> str:
    """Return the SHA-256 (hex) from a Content-Digest header."""
    match = _SHA256.search(header or "")
    if match is None:
        state = f"is {header[:80]!r}" if header else "is missing"
        raise InvalidRequest(
            f"content-digest {state}. Send sha-256=:<base64 of the SHA-256 of the body>:.", param="content-digest"
        )
    return base64.b64decode(match[1]).hex()


def _hex(sha256: str) -> str:
    if not is_digest(sha256):
        raise InvalidRequest(f"sha256 is {sha256[:80]!r}, but must be 64 lower-case hex digits.", param="parts")
    return sha256
