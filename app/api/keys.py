"""API key routes.

- ``/admin/tenants/{tenant}/keys``: a tenant's keys.
- ``/admin/keys``: platform keys, and ``/admin/keys/all`` those of all tenants too.
- ``/v1/keys``: keys of the caller's tenant, for its keys with the scope ``keys:write``.
- ``GET /v1/key``: the calling key, of any kind.
"""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth import Admin, GatewayDep, Owner, authenticate, require, require_tenant
from app.api.schemas import Cursor, KeyCreate, KeyOut, KeyPatch, KeyRotate, Limit, ListOut, NewKeyOut, answers
from app.api.searches import Order
from app.domain.access import Caller, KeyFilter, Scope
from app.domain.searches import Sort
from app.services.common.validation import DEFAULT_LIMIT

_DEFAULT_ROTATION = KeyRotate()

own = APIRouter(tags=["keys"])
router = APIRouter(tags=["keys"], dependencies=[Depends(require(Scope.ADMIN))])


async def _tenant_of(request: Request) -> str | None:
    return request.path_params.get("tenant")


#: Slug from the path, or None for platform keys.
Tenant = Annotated[str | None, Depends(_tenant_of)]


async def _filter(
    text: Annotated[str | None, Query(alias="q", description="Part of an id, a name or an owner")] = None,
    working: Annotated[
        bool | None,
        Query(description="Only keys that are neither revoked nor expired nor of a disabled tenant, or only others"),
    ] = None,
    sort: Order = Sort.CREATED,
) -> KeyFilter:
    return KeyFilter(text=text or None, working=working, sort=sort)


#: Filter of a list of keys.
Only = Annotated[KeyFilter, Depends(_filter)]


@router.post("", status_code=201, summary="Create a key, which is shown only once", responses=answers(400, 404))
async def create_key(
    body: KeyCreate, tenant: Tenant, caller: Admin, gateway: GatewayDep, request: Request, response: Response
) -> NewKeyOut:
    """The answer is the only one that has the key itself. The server stores only an HMAC of it."""
    new = await gateway.keys.create(
        tenant,
        name=body.name,
        scopes=body.scopes,
        expires_in_s=body.expires_in_s,
        restrictions=_restrictions(body),
        owner=body.owner,
        actor=caller.key_id,
    )
    response.headers["location"] = f"{request.url.path}/{new.key.id}"
    return NewKeyOut.made(new.key, new.text)


@router.get("", summary="List keys, including expired and revoked ones", responses=answers(400, 404))
async def list_keys(
    tenant: Tenant, gateway: GatewayDep, only: Only, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[KeyOut]:
    """Keys are listed by their public ids. No answer of this route has a key itself."""
    page = await gateway.keys.list(tenant, only=only, limit=limit, cursor=cursor)
    return ListOut(data=[KeyOut.of(key) for key in page.data], next_cursor=page.next_cursor)


@router.patch("/{key_id}", summary="Set or lift a key's restrictions, or change its owner", responses=answers(400, 404))
async def update_key(key_id: str, body: KeyPatch, tenant: Tenant, caller: Admin, gateway: GatewayDep) -> KeyOut:
    """Omitted fields stay unchanged; null lifts a restriction."""
    return KeyOut.of(await gateway.keys.restrict(tenant, key_id, _restrictions(body), actor=caller.key_id))


@router.delete("/{key_id}", status_code=204, summary="Revoke a key", responses=answers(404))
async def revoke_key(key_id: str, tenant: Tenant, caller: Admin, gateway: GatewayDep) -> None:
    """The key stops working within a second on every server. Its running answers end with an error."""
    await gateway.keys.revoke(tenant, key_id, actor=caller.key_id)


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    summary="Rotate a key; the old one works until the grace period ends",
    responses=answers(400, 404, 409),
)
async def rotate_key(
    key_id: str,
    tenant: Tenant,
    caller: Admin,
    gateway: GatewayDep,
    request: Request,
    response: Response,
    body: KeyRotate = _DEFAULT_ROTATION,
) -> NewKeyOut:
    """The new key has the old one's name, scopes and restrictions."""
    new = await gateway.keys.rotate(tenant, key_id, grace_s=body.grace_s, actor=caller.key_id)
    response.headers["location"] = f"{request.url.path.removesuffix(f'/{key_id}/rotate')}/{new.key.id}"
    return NewKeyOut.made(new.key, new.text)


@own.get("/v1/key", summary="Show the calling key: its tenant, scopes, restrictions and expiry", responses=answers())
async def get_own_key(caller: Annotated[Caller, Depends(authenticate)], gateway: GatewayDep) -> KeyOut:
    """The answer never has the key's text. `tenant` is null for a platform key."""
    return KeyOut.of(await gateway.keys.own(caller))


@own.get("/admin/keys/all", summary="List the keys of the platform and of all tenants", responses=answers(400, 404))
async def list_all_keys(
    _: Admin,
    gateway: GatewayDep,
    only: Only,
    tenant: Annotated[str | None, Query(description="Slug of the only owner; default: all, and the platform")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[KeyOut]:
    """Keys are listed by their public ids. No answer of this route has a key itself."""
    chosen = replace(only, all_owners=tenant is None)
    page = await gateway.keys.list(tenant, only=chosen, limit=limit, cursor=cursor)
    return ListOut(data=[KeyOut.of(key) for key in page.data], next_cursor=page.next_cursor)


#: Owner of the keys under ``/v1/keys``.
Maker = Annotated[Owner, Depends(require_tenant(Scope.KEYS_WRITE))]


@own.post(
    "/v1/keys",
    status_code=201,
    summary="Create a key of the tenant, which is shown only once",
    responses=answers(400, 409),
)
async def create_own_key(body: KeyCreate, maker: Maker, gateway: GatewayDep, response: Response) -> NewKeyOut:
    """The new key has at most the scopes, adapters, networks and lifetime of the calling key.

    Restrictions that are not given are those of the calling key. A key with limits cannot create keys.
    """
    new = await gateway.own_keys.create(
        maker.caller,
        name=body.name,
        scopes=body.scopes,
        expires_in_s=body.expires_in_s,
        restrictions=_restrictions(body),
        owner=body.owner,
    )
    response.headers["location"] = f"/v1/keys/{new.key.id}"
    return NewKeyOut.made(new.key, new.text)


@own.get("/v1/keys", summary="List the tenant's keys, including expired and revoked ones", responses=answers(400))
async def list_own_keys(
    maker: Maker, gateway: GatewayDep, only: Only, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[KeyOut]:
    """Keys are listed by their public ids. No answer of this route has a key itself."""
    page = await gateway.keys.list(maker.tenant, only=only, limit=limit, cursor=cursor)
    return ListOut(data=[KeyOut.of(key) for key in page.data], next_cursor=page.next_cursor)


@own.delete("/v1/keys/{key_id}", status_code=204, summary="Revoke a key of the tenant", responses=answers(404))
async def revoke_own_key(key_id: str, maker: Maker, gateway: GatewayDep) -> None:
    """The calling key revokes itself, and keys that have no more rights.

    A revoked key stops working within a second on every server.
    """
    await gateway.own_keys.revoke(maker.caller, key_id)


def _restrictions(body: KeyPatch) -> dict[str, Any]:
    """Return the owner and the restrictions that were sent; null lifts one."""
    return body.model_dump(include=set(KeyPatch.model_fields), exclude_unset=True)
