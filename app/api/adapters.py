"""Routes of adapters and versions: ``/admin/tenants/{tenant}/adapters``, and ``/v1/adapters`` for a tenant's keys."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from adapters.identity import MAX_VERSION_NUMBER
from app.api.auth import GatewayDep, Owner, require_owner
from app.api.filters import Filter
from app.api.provenance import VersionPatch
from app.api.schemas import AdapterOut, AdapterPatch, Cursor, Limit, ListOut, VersionOut, answers
from app.api.searches import Searched
from app.domain.access import Scope
from app.services.common.validation import DEFAULT_LIMIT

router = APIRouter(tags=["adapters"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
Number = Annotated[int, Path(ge=1, le=MAX_VERSION_NUMBER, description="Number of the version")]


@router.get("", summary="List adapters that have a matching version", responses=answers(400, 404))
async def list_adapters(
    owner: Reader,
    gateway: GatewayDep,
    only: Filter,
    search: Searched,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[AdapterOut]:
    """Adapters are listed in the order of their creation, unless `sort` names another.

    Filters keep each adapter that has a version with all the given properties.
    """
    page = await gateway.adapters.list_adapters(owner.tenant, only=only, search=search, limit=limit, cursor=cursor)
    return ListOut(data=[AdapterOut.of(adapter) for adapter in page.data], next_cursor=page.next_cursor)


@router.get("/{adapter}", summary="Show an adapter", responses=answers(404))
async def get_adapter(adapter: str, owner: Reader, gateway: GatewayDep) -> AdapterOut:
    """The answer has the adapter's version numbers, its aliases and its limits."""
    return AdapterOut.of(await gateway.adapters.get_adapter(owner.tenant, adapter))


@router.patch("/{adapter}", summary="Set limits for all callers of an adapter", responses=answers(400, 404))
async def update_adapter(adapter: str, body: AdapterPatch, owner: Writer, gateway: GatewayDep) -> AdapterOut:
    """The limits hold for all callers together, recipients of shares included. Omitted limits stay unchanged."""
    limits = body.model_dump(exclude_unset=True)["limits"]
    return AdapterOut.of(await gateway.adapters.limit(owner.tenant, adapter, limits, actor=owner.caller.key_id))


@router.get("/{adapter}/versions", summary="List an adapter's versions, newest first", responses=answers(400, 404))
async def list_versions(
    adapter: str,
    owner: Reader,
    gateway: GatewayDep,
    only: Filter,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[VersionOut]:
    """Filters keep the versions that have all the given properties."""
    page = await gateway.adapters.list_versions(owner.tenant, adapter, only=only, limit=limit, cursor=cursor)
    return ListOut(data=[VersionOut.of(version, gateway.base) for version in page.data], next_cursor=page.next_cursor)


@router.get("/{adapter}/versions/{number}", summary="Show a version", responses=answers(404))
async def get_version(adapter: str, number: Number, owner: Reader, gateway: GatewayDep) -> VersionOut:
    """The answer has the version's state, manifest, provenance, labels, defaults and warnings."""
    return VersionOut.of(await gateway.adapters.get_version(owner.tenant, adapter, number), gateway.base)


@router.patch(
    "/{adapter}/versions/{number}",
    summary="Replace a version's labels, card, training-run link or defaults",
    responses=answers(400, 404),
)
async def update_version(
    adapter: str, number: Number, body: VersionPatch, owner: Writer, gateway: GatewayDep
) -> VersionOut:
    """Each field in the body is replaced as a whole. Files, number and digest of a version never change."""
    caller, changes = owner.caller, body.model_dump(exclude_unset=True)
    admin = Scope.ADMIN in caller.scopes
    return VersionOut.of(
        await gateway.descriptions.describe(owner.tenant, adapter, number, changes, admin=admin, actor=caller.key_id),
        gateway.base,
    )
