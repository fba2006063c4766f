"""``GET /admin/engine``: status of this server's engine; ``GET /v1/engine``: a tenant's part of it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.api.auth import GatewayDep, Owner, require, require_owner
from app.api.engine_schemas import EngineOut, OwnEngineOut
from app.api.schemas import answers
from app.domain.access import Scope
from app.services.operations.engine_view import DEFAULT_SHOWN, MAX_SHOWN

router = APIRouter(tags=["engine"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
Shown = Annotated[
    int, Query(ge=1, le=MAX_SHOWN, description="Maximum number of items in each list, waiting ones before running ones")
]


@router.get(
    "/admin/engine",
    summary="Show this server's engine: slots, tiers, queues and load times",
    responses=answers(),
    dependencies=[Depends(require(Scope.ADMIN))],
)
async def get_engine(gateway: GatewayDep, limit: Shown = DEFAULT_SHOWN) -> EngineOut:
    """A server with engine replicas shows their sum. `nodes` has all servers and replicas on this registry."""
    view, nodes = await gateway.engine_view.whole(limit), await gateway.node_view.nodes(limit)
    return EngineOut.of(view, gateway.limits.accounts.health, nodes)


@router.get("/v1/engine", summary="Show where the tenant's adapters are loaded, and its requests", responses=answers())
async def get_own_engine(owner: Reader, gateway: GatewayDep, limit: Shown = DEFAULT_SHOWN) -> OwnEngineOut:
    """The answer has nothing of other tenants, except that shared adapters show where they are loaded."""
    return OwnEngineOut.of(await gateway.engine_view.own(owner.tenant, limit))
