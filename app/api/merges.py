"""Merge routes: ``POST .../adapters/{adapter}/merges`` combines versions into a new one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import Owner, ProcessDep, require_owner
from app.api.schemas import VersionOut, answers
from app.api.uploads import publish_options, version_answer
from app.domain.access import Scope

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]


class SourceBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: str = Field(description="ADAPTER@NUMBER, a version of the same tenant", examples=["pricing@3"])
    weight: float


class MergeBody(BaseModel):
    """Arguments of PEFT's `add_weighted_adapter`. The service validates the values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sources: list[SourceBody] = Field(description="2 to 8 versions")
    method: str = Field(description="linear, cat, svd, ties, dare_linear, dare_ties or magnitude_prune")
    density: float | None = Field(None, description="the part of the values that ties, dare_* and magnitude_prune keep")
    majority_sign_method: str | None = Field(None, description="of ties and dare_ties: total (default) or frequency")
    svd_rank: int | None = Field(None, description="of svd: the result's rank; default: the largest of the sources'")
    svd_full_matrices: bool | None = Field(
        None, description="of svd; default true, as in PEFT; false takes a fraction of the time"
    )
    seed: int | None = Field(None, description="of dare_*; default: a new one, which the version's recipe then shows")
    options: dict[str, Any] = Field(
        default_factory=dict, description="as for an upload, but no alias moves unless it is named"
    )


@router.post(
    "/{adapter}/merges",
    status_code=201,
    summary="Merge versions of this tenant into a new one, by PEFT",
    responses={
        **answers(400, 404, 409, 410),
        200: {"model": VersionOut, "description": "the result's bytes are a version already"},
        202: {"model": VersionOut, "description": "`wait` is false: the smoke check goes on"},
    },
)
async def merge(
    adapter: str, body: MergeBody, owner: Writer, process: ProcessDep, request: Request, response: Response
) -> VersionOut:
    # A merge is untested: move no alias unless the publisher names one.
    options = publish_options(
        body.options, request, owner, process.settings.limits, source={"kind": "merge"}, default_alias=None
    )
    recipe = body.model_dump(exclude={"options"}, exclude_none=True)
    published = await process.merging.merge(owner.tenant, adapter, recipe, options, actor=owner.caller.key_id)
    return version_answer(
        published, response, process.base, versions_path=f"{request.url.path.removesuffix('/merges')}/versions"
    )
