"""Share routes: ``.../adapters/{adapter}/shares`` for the owner, ``/v1/shared`` for recipients."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, Field

from adapters.identity import MAX_VERSION_NUMBER
from app.api.auth import GatewayDep, Owner, require_owner
from app.api.provenance import BaseOut, base_of
from app.api.schemas import Cursor, Limit, ListOut, answers
from app.api.searches import Searched, SearchedByName
from app.domain.access import Caller, Scope
from app.domain.adapters import Version
from app.domain.shares import Share, SharedAdapter
from app.services.common.validation import DEFAULT_LIMIT

#: Mounted at the same prefixes as the adapter routes.
owned = APIRouter(tags=["sharing"])
#: Mounted at ``/v1/shared``, and at ``/admin/tenants/{tenant}/shared`` to show a tenant's view.
shared = APIRouter(tags=["sharing"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
Number = Annotated[int, Path(ge=1, le=MAX_VERSION_NUMBER, description="Number of the version")]


class ShareOut(BaseModel):
    recipient: str = Field(description="Slug of the recipient. A listed recipient need not exist.")
    recipient_exists: bool | None = Field(
        description="Whether the recipient is a tenant; null unless the caller has a platform key"
    )
    created_at: datetime
    created_by: str = Field(description="Id of the key that shared it")

    @classmethod
    def of(cls, share: Share, caller: Caller) -> Self:
        return cls(
            recipient=share.recipient,
            recipient_exists=share.recipient_exists if Scope.ADMIN in caller.scopes else None,
            created_at=share.created_at,
            created_by=share.created_by,
        )


class SharedAdapterOut(BaseModel):
    name: str = Field(description="Value of `model` or `adapter_id` in requests: `owner/adapter`")
    owner: str
    adapter: str
    shared_at: datetime
    versions: list[int] = Field(description="Ready versions, newest first")
    aliases: dict[str, dict[int, int]] = Field(description="Alias -> version -> weight of its traffic")

    @classmethod
    def of(cls, adapter: SharedAdapter) -> Self:
        return cls(
            name=adapter.full_name,
            owner=adapter.owner,
            adapter=adapter.name,
            shared_at=adapter.shared_at,
            versions=list(adapter.versions),
            aliases={alias: dict(targets) for alias, targets in adapter.aliases.items()},
        )


class SharedVersionOut(BaseModel):
    """Public view of a version: without the owner's keys, addresses, sources, links and prompts."""

    name: str = Field(description="Value of `model` in requests for exactly this version")
    owner: str
    adapter: str
    version: int
    state: str
    digest: str = Field(description="`sha256:` and 64 hex digits, over both files")
    size_bytes: int
    rank: int
    created_at: datetime
    aliases: list[str]
    labels: dict[str, str]
    card: str = Field(description="Free text of the owner, to be shown as plain text")
    base: BaseOut | None

    @classmethod
    def of(cls, owner: str, version: Version) -> Self:
        return cls(
            name=f"{owner}/{version.adapter}@{version.number}",
            owner=owner,
            adapter=version.adapter,
            version=version.number,
            state=version.state.value,
            digest=f"sha256:{version.uploaded.digest}",
            size_bytes=version.uploaded.size,
            rank=version.rank,
            created_at=version.created_at,
            aliases=list(version.aliases),
            labels=dict(version.labels),
            card=version.card,
            base=base_of(version),
        )


@owned.put(
    "/{adapter}/shares/{recipient}",
    status_code=201,
    summary="Share an adapter: let another tenant read it and infer with it",
    responses={
        **answers(400, 404),
        200: {"model": ShareOut, "description": "The adapter is shared with this tenant already"},
    },
)
async def share_adapter(
    adapter: str, recipient: str, owner: Writer, gateway: GatewayDep, response: Response
) -> ShareOut:
    """The recipient names the adapter `owner/adapter`.

    It can read its ready versions, but not their files or provenance.
    """
    caller = owner.caller
    stored_share, created = await gateway.sharing.share(
        owner.tenant, adapter, recipient, actor=caller.key_id, must_exist=Scope.ADMIN in caller.scopes
    )
    response.status_code = 201 if created else 200
    return ShareOut.of(stored_share, caller)


@owned.delete(
    "/{adapter}/shares/{recipient}",
    status_code=204,
    summary="End a share, effective from the next request",
    responses=answers(404),
)
async def unshare_adapter(adapter: str, recipient: str, owner: Writer, gateway: GatewayDep) -> None:
    """The recipient's requests for the adapter get 404 from then on."""
    await gateway.sharing.unshare(owner.tenant, adapter, recipient, actor=owner.caller.key_id)


@owned.get("/{adapter}/shares", summary="List the recipients of an adapter", responses=answers(400, 404))
async def list_shares(
    adapter: str,
    owner: Reader,
    gateway: GatewayDep,
    search: SearchedByName,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[ShareOut]:
    """Recipients are sorted by slug, which `q` searches. A platform key also sees whether each recipient exists."""
    page = await gateway.sharing.list_shares(owner.tenant, adapter, search=search, limit=limit, cursor=cursor)
    return ListOut(data=[ShareOut.of(share, owner.caller) for share in page.data], next_cursor=page.next_cursor)


@shared.get("", summary="List adapters that other tenants share with this tenant", responses=answers(400, 404))
async def list_shared_adapters(
    reader: Reader, gateway: GatewayDep, search: Searched, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[SharedAdapterOut]:
    """Each adapter is named `owner/adapter`, as in requests. `q` searches these names."""
    page = await gateway.sharing.list_shared(reader.tenant, search=search, limit=limit, cursor=cursor)
    return ListOut(data=[SharedAdapterOut.of(adapter) for adapter in page.data], next_cursor=page.next_cursor)


@shared.get("/{owner}/{adapter}", summary="Show a shared adapter", responses=answers(404))
async def get_shared_adapter(owner: str, adapter: str, reader: Reader, gateway: GatewayDep) -> SharedAdapterOut:
    """The answer has the ready versions and the aliases that point at them."""
    return SharedAdapterOut.of(await gateway.sharing.get_shared(reader.tenant, owner, adapter))


@shared.get(
    "/{owner}/{adapter}/versions",
    summary="List a shared adapter's ready versions, newest first",
    responses=answers(400, 404),
)
async def list_shared_versions(
    owner: str,
    adapter: str,
    reader: Reader,
    gateway: GatewayDep,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[SharedVersionOut]:
    """Versions that are not ready are not shown."""
    page = await gateway.sharing.list_shared_versions(reader.tenant, owner, adapter, limit=limit, cursor=cursor)
    data = [SharedVersionOut.of(owner, version) for version in page.data]
    return ListOut(data=data, next_cursor=page.next_cursor)


@shared.get(
    "/{owner}/{adapter}/versions/{number}", summary="Show a ready version of a shared adapter", responses=answers(404)
)
async def get_shared_version(
    owner: str, adapter: str, number: Number, reader: Reader, gateway: GatewayDep
) -> SharedVersionOut:
    """The answer has no provenance, manifest or defaults, which belong to the owner."""
    return SharedVersionOut.of(owner, await gateway.sharing.get_shared_version(reader.tenant, owner, adapter, number))
