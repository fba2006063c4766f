"""``GET /v1/limits``: the limits of the calling key and its tenant, with usage and remainder."""

from typing import Annotated, Self

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from app.api.auth import ProcessDep, authenticate
from app.api.schemas import answers
from app.domain.access import Caller
from app.domain.limits.limits import COSTS
from app.domain.limits.remaining import Left
from app.domain.money import amount_text
from app.services.serving.models import tenant_of

router = APIRouter(tags=["usage"])


class LeftOut(BaseModel):
    limit: str = Field(examples=["tokens_per_minute"])
    allowed: int | str = Field(description="money as a decimal")
    used: int | str | None = Field(
        description="with the most that running requests can use; null: it is of each request"
    )
    remaining: int | str
    reset_s: float | None = Field(description="seconds until nothing of it is used; null: that is no matter of time")

    @classmethod
    def of(cls, left: Left) -> Self:
        def shown(number: int) -> int | str:
            return amount_text(number) if left.name in COSTS else number

        return cls(
            limit=left.name,
            allowed=shown(left.allowed),
            used=None if left.used is None else shown(left.used),
            remaining=shown(left.remaining),
            reset_s=left.reset_s,
        )


class OwnLimitsOut(BaseModel):
    currency: str = Field(description="of limits of money")
    tenant: list[LeftOut] = Field(description="of all the tenant's keys together; limits that nobody set are not there")
    key: list[LeftOut] = Field(description="of this key")


@router.get("/v1/limits", summary="What the key and its tenant may use, and what is left", responses=answers())
async def own(caller: Annotated[Caller, Depends(authenticate)], process: ProcessDep) -> OwnLimitsOut:
    tenant_of(caller)
    found = await process.limits.left(caller)
    shown = {whose: [LeftOut.of(one) for one in left] for whose, left in found.items()}
    return OwnLimitsOut(currency=process.settings.currency, **shown)
