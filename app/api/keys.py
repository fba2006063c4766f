"""API key routes.

- ``/admin/tenants/{tenant}/keys``: a tenant's keys.
- ``/admin/keys``: platform keys.
- ``GET /v1/key``: the calling key, of any kind.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.auth import Admin, GatewayDep, authenticate, require
from app.api.schemas import Cursor, KeyCreate, KeyOut, KeyPatch, KeyRotate, Limit, ListOut, NewKeyOut, answers
from app.domain.access import Caller, Scope
from app.services.common.validation import DEFAULT_LIMIT

_DEFAULT_ROTATION = KeyRotate()

own = APIRouter(tags=["keys"])
router = APIRouter(tags=["keys"], dependencies=[Depends(require(Scope.ADMIN))])


async def _tenant_of(request: Request) -> str | None:
    return request.path_params.get("tenant")


#: Slug from the path, or None for platform keys.
Tenant = Annotated[str | None, Depends(_tenant_of)]


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
        actor=caller.key_id,
    )
    response.headers["location"] = f"{request.url.path}/{new.key.id}"
    return NewKeyOut.made(new.key, new.text)


@router.get("", summary="List keys, including expired and revoked ones", responses=answers(400, 404))
async def list_keys(
    tenant: Tenant, gateway: GatewayDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[KeyOut]:
    """Keys are listed by their public ids. No answer of this route has a key itself."""
    page = await gateway.keys.list(tenant, limit=limit, cursor=cursor)
    return ListOut(data=[KeyOut.of(key) for key in page.data], next_cursor=page.next_cursor)


@router.patch("/{key_id}", summary="Set or lift a key's restrictions", responses=answers(400, 404))
async def update_key(key_id: str, body: KeyPatch, tenant: Tenant, caller: Admin, gateway: GatewayDep) -> KeyOut:
    """Omitted restrictions stay unchanged; null lifts one."""
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
async def show_own(caller: Annotated[Caller, Depends(authenticate)], gateway: GatewayDep) -> KeyOut:
    return KeyOut.of(await gateway.keys.own(caller))


def _restrictions(body: KeyPatch) -> dict[str, Any]:
    """Return the restrictions that were sent; null lifts one."""
    return body.model_dump(include=set(KeyPatch.model_fields), exclude_unset=True)
