"""``/admin/tenants``: business units. Platform keys only."""

from fastapi import APIRouter, Depends, Response

from app.api.auth import Admin, ProcessDep, require
from app.api.schemas import Cursor, Limit, ListOut, TenantCreate, TenantOut, TenantPatch, answers
from app.registry import Scope
from app.services.checks import DEFAULT_LIMIT

router = APIRouter(prefix="/admin/tenants", tags=["tenants"], dependencies=[Depends(require(Scope.ADMIN))])


@router.post("", status_code=201, summary="Add a tenant", responses=answers(400, 409))
async def create(body: TenantCreate, caller: Admin, process: ProcessDep, response: Response) -> TenantOut:
    tenant = await process.tenants.create(body.slug, name=body.name, actor=caller.key_id)
    response.headers["location"] = f"/admin/tenants/{tenant.slug}"
    return TenantOut.of(tenant)


@router.get("", summary="List tenants", responses=answers(400))
async def list_(process: ProcessDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> ListOut[TenantOut]:
    page = await process.tenants.list(limit=limit, cursor=cursor)
    return ListOut(data=[TenantOut.of(tenant) for tenant in page.data], next_cursor=page.next_cursor)


@router.get("/{tenant}", summary="Show a tenant", responses=answers(404))
async def show(tenant: str, process: ProcessDep) -> TenantOut:
    return TenantOut.of(await process.tenants.get(tenant))


@router.patch("/{tenant}", summary="Rename, disable or enable a tenant", responses=answers(400, 404))
async def change(tenant: str, body: TenantPatch, caller: Admin, process: ProcessDep) -> TenantOut:
    changed = await process.tenants.update(tenant, name=body.name, disabled=body.disabled, actor=caller.key_id)
    return TenantOut.of(changed)


@router.delete("/{tenant}", status_code=204, summary="Delete a tenant without adapters", responses=answers(404, 409))
async def delete(tenant: str, caller: Admin, process: ProcessDep) -> None:
    await process.tenants.delete(tenant, actor=caller.key_id)
