"""Pin routes: ``.../adapters/{adapter}/versions/{number}/pin``, and ``/admin/pins`` for the platform."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, Field

from adapters.identity import MAX_VERSION_NUMBER
from app.api.auth import GatewayDep, Owner, require, require_owner
from app.api.schemas import answers
from app.domain.access import Scope
from app.domain.pins import Pin, Placement, Preload

#: Mounted at the same prefixes as the adapter routes.
owned = APIRouter(tags=["pins"])
router = APIRouter(prefix="/admin/pins", tags=["pins"], dependencies=[Depends(require(Scope.ADMIN))])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
Number = Annotated[int, Path(ge=1, le=MAX_VERSION_NUMBER, description="Number of the version")]


class PinOut(BaseModel):
    name: str = Field(description="Name of the version: `adapter@number`")
    tenant: str
    adapter: str
    version: int
    created_at: datetime
    created_by: str = Field(description="Id of the key that pinned it")
    held: bool = Field(
        description="Whether this server's engine holds it already. The engine follows within about a second."
    )

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
    name: str = Field(description="Entry of `TENORA_PRELOAD`")
    versions: list[str] = Field(description="Versions that the entry resolved to when this server started")
    problem: str | None = Field(description="Reason why it was not loaded; null: it was loaded")

    @classmethod
    def of(cls, preload: Preload) -> Self:
        return cls(name=preload.name, versions=list(preload.versions), problem=preload.problem)


class PlacementOut(BaseModel):
    slots: int = Field(description="Number of engine slots. At least one is never pinned.")
    data: list[PinOut] = Field(description="Pins of all tenants, oldest first")
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
    summary="Pin a version: reserve an engine slot for it",
    responses={**answers(404, 409), 200: {"model": PinOut, "description": "The version is pinned already"}},
)
async def pin_version(adapter: str, number: Number, owner: Writer, gateway: GatewayDep, response: Response) -> PinOut:
    """The engine loads the version within about a second and never evicts it. The tenant's quota caps pinned slots."""
    caller = owner.caller
    stored_pin, created = await gateway.pins.pin(
        owner.tenant, adapter, number, actor=caller.key_id, admin=Scope.ADMIN in caller.scopes
    )
    response.status_code = 201 if created else 200
    return PinOut.of(stored_pin)


@owned.delete(
    "/{adapter}/versions/{number}/pin",
    status_code=204,
    summary="Unpin a version",
    responses=answers(404),
)
async def unpin_version(adapter: str, number: Number, owner: Writer, gateway: GatewayDep) -> None:
    """The version stays loaded until the engine needs its slot."""
    caller = owner.caller
    await gateway.pins.unpin(owner.tenant, adapter, number, actor=caller.key_id, admin=Scope.ADMIN in caller.scopes)


@router.get("", summary="List pins and preloads", responses=answers())
async def list_pins(gateway: GatewayDep) -> PlacementOut:
    """Preloads are the entries of `TENORA_PRELOAD`, with the versions that they stood for at the start."""
    return PlacementOut.of(await gateway.pins.placement())
