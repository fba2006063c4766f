"""``/v1/batches``, as the published openai SDK uses it, and ``/admin/batches`` for platform keys."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.api.auth import GatewayDep, require
from app.api.batch_schemas import (
    After,
    BatchCreate,
    BatchListOut,
    BatchOut,
    Limit,
    PlatformBatchListOut,
    PlatformBatchOut,
)
from app.api.schemas import answers
from app.domain.access import Caller, Scope
from app.domain.batches import BatchState
from app.domain.clock import utc_now
from app.services.batches.service import DEFAULT_LIMIT

router = APIRouter(prefix="/v1/batches", tags=["batches"])
everyones = APIRouter(prefix="/admin/batches", tags=["batches"], dependencies=[Depends(require(Scope.ADMIN))])

BatchCaller = Annotated[Caller, Depends(require(Scope.BATCH))]


@router.post("", summary="Create a batch", responses=answers(400, 404, 409, 410, 429))
async def create_batch(body: BatchCreate, caller: BatchCaller, gateway: GatewayDep) -> BatchOut:
    """The answer comes at once, with the status `validating`. Then all lines are checked before the first one runs.

    A line may name any model that the key may use. Each name is resolved once, to one version for the whole batch.
    Without `model`, a line has that of `tenora`. The key also needs the scope `inference`.
    """
    return BatchOut.of(await gateway.batches.create(caller, body.to_batch()), utc_now())


@router.get("", summary="List the tenant's batches", responses=answers(400, 404))
async def list_batches(
    caller: BatchCaller, gateway: GatewayDep, limit: Limit = DEFAULT_LIMIT, after: After = None
) -> BatchListOut:
    """Batches are listed newest first."""
    page, now = await gateway.batches.list(caller, limit=limit, after=after), utc_now()
    shown = [BatchOut.of(batch, now) for batch in page.data]
    return BatchListOut(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=page.has_more,
    )


@router.get("/{batch_id}", summary="Show a batch", responses=answers(404))
async def get_batch(batch_id: str, caller: BatchCaller, gateway: GatewayDep) -> BatchOut:
    """The answer has the batch's state, counts, usage, rate and expected end."""
    return BatchOut.of(await gateway.batches.get(caller, batch_id), utc_now())


@router.post("/{batch_id}/cancel", summary="Cancel a batch", responses=answers(404, 409))
async def cancel_batch(batch_id: str, caller: BatchCaller, gateway: GatewayDep) -> BatchOut:
    """Lines with an answer are kept and charged. The others are in the file of errors with `batch_cancelled`."""
    return BatchOut.of(await gateway.batches.cancel(caller, batch_id), utc_now())


@everyones.get("", summary="List the batches of all tenants", responses=answers(400, 404))
async def list_all_batches(
    gateway: GatewayDep,
    tenant: Annotated[str | None, Query(description="Only batches of this tenant")] = None,
    state: Annotated[BatchState | None, Query(description="Only batches in this state")] = None,
    limit: Limit = DEFAULT_LIMIT,
    after: After = None,
) -> PlatformBatchListOut:
    """Batches are listed newest first, without prompts, answers and metadata."""
    page = await gateway.batches.list_all(tenant=tenant, state=state, limit=limit, after=after)
    now = utc_now()
    shown = [PlatformBatchOut.of(slug, batch, now) for slug, batch in page.data]
    return PlatformBatchListOut(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=page.has_more,
    )
