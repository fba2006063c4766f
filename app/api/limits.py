"""``GET /v1/limits``: the limits of the calling key and its tenant, with usage and remainder."""

from typing import Annotated, Self

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from app.api.auth import GatewayDep, authenticate
from app.api.schemas import answers
from app.domain.access import Caller
from app.domain.limits.limits import COSTS
from app.domain.limits.remaining import Left
from app.domain.money import amount_text
from app.services.serving.models import tenant_of

router = APIRouter(tags=["usage"])


class LimitStatusOut(BaseModel):
    limit: str = Field(examples=["tokens_per_minute"])
    allowed: int | str = Field(description="Value of the limit; a cost is a decimal")
    used: int | str | None = Field(
        description="Amount used, including the maximum of running requests; null for a limit of each request"
    )
    remaining: int | str
    reset_s: float | None = Field(
        description="Seconds until the whole limit is free again; null: time does not free it"
    )

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


class LimitReportOut(BaseModel):
    currency: str = Field(description="Currency of cost limits")
    tenant: list[LimitStatusOut] = Field(
        description="Limits of all the tenant's keys together; limits that are not set are omitted"
    )
    key: list[LimitStatusOut] = Field(description="Limits of this key")


@router.get(
    "/v1/limits", summary="Show the limits of the key and its tenant, with usage and remainder", responses=answers()
)
async def get_limits(caller: Annotated[Caller, Depends(authenticate)], gateway: GatewayDep) -> LimitReportOut:
    """The lists have the limits that are set. Their use includes the maximum of running requests."""
    tenant_of(caller)
    remaining = await gateway.limits.left(caller)
    shown = {holder: [LimitStatusOut.of(left) for left in lefts] for holder, lefts in remaining.items()}
    return LimitReportOut(currency=gateway.settings.currency, **shown)
