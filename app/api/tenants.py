"""``/admin/tenants`` for platform keys, and ``/v1/quota`` for a tenant's own keys."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.api.auth import Admin, GatewayDep, Owner, require, require_owner
from app.api.quota_schemas import QuotaOut, QuotaReportOut, QuotaUseOut
from app.api.schemas import Cursor, Limit, ListOut, TenantCreate, TenantOut, TenantPatch, TenantUsageOut, answers
from app.api.searches import Searched
from app.domain.access import Scope
from app.services.access.tenants import KEEP
from app.services.common.validation import DEFAULT_LIMIT

own = APIRouter(tags=["tenants"])
router = APIRouter(prefix="/admin/tenants", tags=["tenants"], dependencies=[Depends(require(Scope.ADMIN))])


@router.post("", status_code=201, summary="Add a tenant", responses=answers(400, 409))
async def create_tenant(body: TenantCreate, caller: Admin, gateway: GatewayDep, response: Response) -> TenantOut:
    """A tenant is a business unit: the owner of adapters, keys and limits. Its slug never changes."""
    weight = 1.0 if body.weight is None else body.weight
    tenant = await gateway.tenants.create(body.slug, name=body.name, weight=weight, actor=caller.key_id)
    response.headers["location"] = f"/admin/tenants/{tenant.slug}"
    return TenantOut.of(tenant)


@router.get("", summary="List tenants", responses=answers(400))
async def list_tenants(
    gateway: GatewayDep, search: Searched, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[TenantOut]:
    """Tenants are listed in the order of their creation, unless `sort` names another.

    `q` is searched in slugs and display names.
    """
    page = await gateway.tenants.list(search=search, limit=limit, cursor=cursor)
    return ListOut(data=[TenantOut.of(tenant) for tenant in page.data], next_cursor=page.next_cursor)


@router.get("/{tenant}", summary="Show a tenant and its use of the quota", responses=answers(404))
async def get_tenant(tenant: str, gateway: GatewayDep) -> TenantUsageOut:
    """The answer has the tenant's quota, limits and weight, and what it keeps."""
    return TenantUsageOut.using(*await gateway.tenants.usage(tenant))


@router.patch(
    "/{tenant}", summary="Change a tenant's name, state, quota, weight or limits", responses=answers(400, 404)
)
async def update_tenant(tenant: str, body: TenantPatch, caller: Admin, gateway: GatewayDep) -> TenantOut:
    # Distinguish null, which lifts limits, from a field that was not sent.
    """Omitted fields stay unchanged. `disabled` refuses all keys of the tenant within a second."""
    fields = body.model_dump(exclude_unset=True)
    changed = await gateway.tenants.update(
        tenant,
        name=body.name,
        disabled=body.disabled,
        quota=fields.get("quota", KEEP),
        weight=body.weight,
        limits=fields.get("limits", KEEP),
        actor=caller.key_id,
    )
    return TenantOut.of(changed)


@router.delete("/{tenant}", status_code=204, summary="Delete a tenant without adapters", responses=answers(404, 409))
async def delete_tenant(tenant: str, caller: Admin, gateway: GatewayDep) -> None:
    """Its keys stop working within a second. Delete the tenant's adapters first."""
    await gateway.tenants.delete(tenant, actor=caller.key_id)


@own.get("/v1/quota", summary="Show the tenant's quota and its use", responses=answers(404))
async def get_quota(
    owner: Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))], gateway: GatewayDep
) -> QuotaReportOut:
    """The answer compares what the tenant keeps with what it may keep."""
    tenant, used = await gateway.tenants.usage(owner.tenant)
    return QuotaReportOut(quota=QuotaOut.of(tenant.quota), used=QuotaUseOut.of(used))
