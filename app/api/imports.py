"""Import route: ``POST .../adapters/{adapter}/imports``, mounted with the adapter routes."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import GatewayDep, Owner, require_owner
from app.api.schemas import VersionOut, answers
from app.api.uploads import publish_options, version_answer
from app.domain.access import Scope

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]


class ImportRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: str = Field(
        description="hf://org/repository@COMMIT[/subfolder] with the full commit, or s3://bucket/prefix/",
        examples=["hf://org/repository@0123456789abcdef0123456789abcdef01234567"],
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options as for an upload, such as alias, labels and card"
    )


@router.post(
    "/{adapter}/imports",
    status_code=201,
    summary="Import a version from the Hugging Face Hub or from S3, if the settings allow it",
    responses={
        **answers(400, 404, 409),
        200: {"model": VersionOut, "description": "A version with these bytes already exists"},
        202: {"model": VersionOut, "description": "`wait` is false and the smoke check still runs"},
    },
)
async def import_version(
    adapter: str, body: ImportRequest, owner: Writer, gateway: GatewayDep, request: Request, response: Response
) -> VersionOut:
    """The server fetches the two files by itself and treats them like an upload.

    The settings list the allowed sources.
    """
    options = publish_options(body.options, request, owner, gateway.settings.limits, source={"kind": "import"})
    published = await gateway.imports.run(owner.tenant, adapter, body.source, options, actor=owner.caller.key_id)
    return version_answer(
        published, response, gateway.base, versions_path=f"{request.url.path.removesuffix('/imports')}/versions"
    )
