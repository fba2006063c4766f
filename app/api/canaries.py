"""Running canaries: ``GET /v1/canaries`` and ``GET /admin/canaries``."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from app.api.alias_schemas import CanaryOut
from app.api.auth import Admin, GatewayDep, Owner, require_owner
from app.api.schemas import Cursor, Limit, ListOut, answers
from app.api.searches import Searched
from app.domain.access import Scope
from app.domain.searches import Search
from app.services.common.validation import DEFAULT_LIMIT
from app.services.rollout.canaries import RunningReport
from app.wiring.gateway import Gateway

router = APIRouter(tags=["aliases"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]


class RunningCanaryOut(CanaryOut):
    """A running canary and its alias."""

    tenant: str = Field(description="Slug of the tenant")
    adapter: str
    alias: str

    @classmethod
    def running(cls, running: RunningReport) -> "RunningCanaryOut":
        shown = CanaryOut.of(running.report)
        alias = running.report.canary.alias
        return cls(**dict(shown), tenant=running.tenant, adapter=running.adapter, alias=alias)


@router.get("/v1/canaries", summary="List the tenant's running canaries", responses=answers(400))
async def list_canaries(
    owner: Reader, gateway: GatewayDep, search: Searched, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[RunningCanaryOut]:
    """The oldest is first unless sorted. `q` searches `tenant/adapter:alias`.

    Each canary has the figures of its current step and the verdict on them.
    """
    return await _listed(gateway, owner.tenant, search, limit, cursor)


@router.get("/admin/canaries", summary="List the running canaries of tenants", responses=answers(400, 404))
async def list_all_canaries(
    _: Admin,
    gateway: GatewayDep,
    search: Searched,
    tenant: Annotated[str | None, Query(description="Slug of the tenant; default: all")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[RunningCanaryOut]:
    """The oldest is first unless sorted. `q` searches `tenant/adapter:alias`.

    Each canary has the figures of its current step and the verdict on them.
    """
    return await _listed(gateway, tenant, search, limit, cursor)


async def _listed(
    gateway: Gateway, tenant: str | None, search: Search, limit: int, cursor: str | None
) -> ListOut[RunningCanaryOut]:
    page = await gateway.canaries.running(tenant, search=search, limit=limit, cursor=cursor)
    return ListOut(data=[RunningCanaryOut.running(one) for one in page.data], next_cursor=page.next_cursor)
