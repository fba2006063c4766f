"""Pin routes: ``.../adapters/{adapter}/versions/{number}/pin``, and ``/admin/pins`` for the platform."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, Field

from adapters.identity import MAX_VERSION_NUMBER
from app.api.auth import Owner, ProcessDep, require, require_owner
from app.api.schemas import answers
from app.domain.access import Scope
from app.domain.pins import Pin, Placement, Preload

#: Mounted at the same prefixes as the adapter routes.
owned = APIRouter(tags=["pins"])
router = APIRouter(prefix="/admin/pins", tags=["pins"], dependencies=[Depends(require(Scope.ADMIN))])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
Number = Annotated[int, Path(ge=1, le=MAX_VERSION_NUMBER, description="the version's number")]


class PinOut(BaseModel):
    name: str = Field(description="`adapter@number`")
    tenant: str
    adapter: str
    version: int
    created_at: datetime
    created_by: str = Field(description="id of the key that pinned it")
    held: bool = Field(description="whether this server's engine keeps it already; it follows within a second or so")

    @classmethod
    def of(cls, pin: Pin) -> Self:
        return cls(
            name=f"{pin.adapter}@{pin.number}",
            tenant=pin.tenant,
            adapter=pin.adapter,
            version=pin.number,
            created_at=pin.created_at,
            created_by=pin.created_by,
            held=pin.held,
        )


class PreloadOut(BaseModel):
    name: str = Field(description="the entry of `TENORA_PRELOAD`")
    versions: list[str] = Field(description="what it meant when this server started")
    problem: str | None = Field(description="why it was not loaded; null if it was")

    @classmethod
    def of(cls, preload: Preload) -> Self:
        return cls(name=preload.name, versions=list(preload.versions), problem=preload.problem)


class PlacementOut(BaseModel):
    slots: int = Field(description="of the engine; one at least is never pinned")
    data: list[PinOut] = Field(description="of all tenants, the oldest first")
    preloads: list[PreloadOut]

    @classmethod
    def of(cls, placement: Placement) -> Self:
        return cls(
            slots=placement.slots,
            data=[PinOut.of(pin) for pin in placement.pins],
            preloads=[PreloadOut.of(preload) for preload in placement.preloads],
        )


@owned.put(
    "/{adapter}/versions/{number}/pin",
    status_code=201,
    summary="Give a version an engine slot of its own",
    responses={**answers(404, 409), 200: {"model": PinOut, "description": "it is pinned already"}},
)
async def pin(adapter: str, number: Number, owner: Writer, process: ProcessDep, response: Response) -> PinOut:
    caller = owner.caller
    made, created = await process.pins.pin(
        owner.tenant, adapter, number, actor=caller.key_id, admin=Scope.ADMIN in caller.scopes
    )
    response.status_code = 201 if created else 200
    return PinOut.of(made)


@owned.delete(
    "/{adapter}/versions/{number}/pin",
    status_code=204,
    summary="Let a version share the slots again",
    responses=answers(404),
)
async def unpin(adapter: str, number: Number, owner: Writer, process: ProcessDep) -> None:
    caller = owner.caller
    await process.pins.unpin(owner.tenant, adapter, number, actor=caller.key_id, admin=Scope.ADMIN in caller.scopes)


@router.get("", summary="List what is pinned and preloaded", responses=answers())
async def list_(process: ProcessDep) -> PlacementOut:
    return PlacementOut.of(await process.placement.shown())
