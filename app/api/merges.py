"""Merge routes: ``POST .../adapters/{adapter}/merges`` combines versions into a new one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import GatewayDep, Owner, require_owner
from app.api.schemas import VersionOut, answers
from app.api.uploads import publish_options, version_answer
from app.domain.access import Scope

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]


class MergeSource(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: str = Field(description="Version of the same tenant: ADAPTER@NUMBER", examples=["pricing@3"])
    weight: float


class MergeRequest(BaseModel):
    """Recipe of a merge: the arguments of PEFT's `add_weighted_adapter`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sources: list[MergeSource] = Field(description="Versions to merge, 2 to 8")
    method: str = Field(description="Method: linear, cat, svd, ties, dare_linear, dare_ties or magnitude_prune")
    density: float | None = Field(None, description="Fraction of the values that ties, dare_* and magnitude_prune keep")
    majority_sign_method: str | None = Field(
        None, description="Sign election of ties and dare_ties: total (default) or frequency"
    )
    svd_rank: int | None = Field(
        None, description="Rank of the result of svd; default: the largest rank of the sources"
    )
    svd_full_matrices: bool | None = Field(
        None, description="Whether svd computes full matrices; default: true, as in PEFT. False is much faster."
    )
    seed: int | None = Field(
        None, description="Random seed of dare_*; default: a new seed, which is recorded in the version's recipe"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options as for an upload, but no alias moves unless it is named"
    )


@router.post(
    "/{adapter}/merges",
    status_code=201,
    summary="Merge versions of this tenant into a new one with PEFT",
    responses={
        **answers(400, 404, 409, 410),
        200: {"model": VersionOut, "description": "A version with the result's bytes already exists"},
        202: {"model": VersionOut, "description": "`wait` is false and the smoke check still runs"},
    },
)
async def merge_versions(
    adapter: str, body: MergeRequest, owner: Writer, gateway: GatewayDep, request: Request, response: Response
) -> VersionOut:
    """The result goes through the checks of an upload. No alias moves unless `options.alias` names one."""
    # A merge is untested: move no alias unless the publisher names one.
    options = publish_options(
        body.options, request, owner, gateway.settings.limits, source={"kind": "merge"}, default_alias=None
    )
    recipe = body.model_dump(exclude={"options"}, exclude_none=True)
    published = await gateway.merging.merge(owner.tenant, adapter, recipe, options, actor=owner.caller.key_id)
    return version_answer(
        published, response, gateway.base, versions_path=f"{request.url.path.removesuffix('/merges')}/versions"
    )
