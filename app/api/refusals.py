"""Refused uploads: ``GET /v1/refusals``, and ``/admin/tenants/{tenant}/refusals``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from app.api.auth import GatewayDep, Owner, require_owner
from app.api.schemas import Cursor, Limit, ListOut, ReasonOut, answers
from app.domain.access import Scope
from app.domain.refusals import UploadRefusal
from app.services.common.validation import DEFAULT_LIMIT

router = APIRouter(tags=["adapters"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]


class UploadRefusalOut(BaseModel):
    """An upload that was refused, with its reasons."""

    adapter: str = Field(description="Name under which it would have been published")
    at: datetime
    key: str = Field(description="Id of the key that sent it")
    key_name: str | None = Field(description="Owner of that key, or else its name; null for a key of the platform")
    digest: str | None = Field(description="`sha256:` and 64 hex digits over both files; null: they did not arrive")
    reasons: list[ReasonOut] = Field(description="The first 100 reasons")
    reason_count: int = Field(description="Number of all reasons")

    @classmethod
    def of(cls, refusal: UploadRefusal) -> "UploadRefusalOut":
        return cls(
            adapter=refusal.adapter,
            at=refusal.at,
            key=refusal.key_id,
            key_name=refusal.key_name,
            digest=None if refusal.digest is None else f"sha256:{refusal.digest}",
            reasons=[ReasonOut(**reason.shown()) for reason in refusal.reasons],
            reason_count=refusal.reason_count,
        )


@router.get("", summary="List refused uploads of the last 30 days, newest first", responses=answers(400, 404))
async def list_refusals(
    owner: Reader,
    gateway: GatewayDep,
    adapter: Annotated[str | None, Query(pattern="^[a-z0-9._-]{1,63}$", description="Name of the adapter")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[UploadRefusalOut]:
    """The server keeps the last 200 refused uploads of a tenant. A preflight that finds reasons is not kept."""
    page = await gateway.refusals.list(owner.tenant, adapter=adapter, limit=limit, cursor=cursor)
    return ListOut(data=[UploadRefusalOut.of(refusal) for refusal in page.data], next_cursor=page.next_cursor)
