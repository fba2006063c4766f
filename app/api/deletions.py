"""Routes that delete, retire and restore versions, and the reports of deletions.

- ``changes`` is mounted with the adapter routes.
- ``own`` is mounted at ``/admin/tenants/{tenant}/deletions`` and ``/v1/deletions``.
- ``everyones`` is for platform keys.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.adapters import Number
from app.api.auth import GatewayDep, Owner, require, require_owner
from app.api.schemas import Cursor, Limit, ListOut, VersionOut, answers
from app.domain.access import Scope
from app.domain.deletions import DeletedVersion, NodeView
from app.services.common.validation import DEFAULT_LIMIT
from app.services.deletion.deletions import Report

changes = APIRouter(tags=["adapters"])
own = APIRouter(tags=["deletions"])
everyones = APIRouter(prefix="/admin/deletions", tags=["deletions"], dependencies=[Depends(require(Scope.ADMIN))])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]
#: A key with the scope ``batch`` follows deletions of files.
FollowingReader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ, Scope.BATCH))]
Force = Annotated[
    bool, Query(description="Delete or retire it although aliases, canaries or pins use it, and detach them")
]


class RetireRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reason: str = Field(description="Reason shown to callers, 1 to 500 characters")


class DeletedVersionOut(BaseModel):
    name: str
    digest: str
    kept_on_disk: str | None = Field(
        description="Reason why nodes kept these bytes; null: they did not. Shown to platform keys only."
    )

    @classmethod
    def of(cls, version: DeletedVersion, *, platform: bool) -> Self:
        kept = "another version has the same bytes" if platform and version.shared else None
        return cls(name=version.name, digest=f"sha256:{version.digest}", kept_on_disk=kept)


class DeletionNodeOut(BaseModel):
    node: str
    name: str | None = Field(description="Name of the machine; shown to platform keys only")
    reachable: bool = Field(
        description="Whether the node is reachable. If not, the state of its disk is unknown until it returns."
    )
    engine_gone_at: datetime | None = Field(
        description="Time at which its engine confirmed that it holds none of the versions"
    )
    disk_gone_at: datetime | None = Field(description="Time at which its disk cache was verified to hold none of them")


class DeletedBlobOut(BaseModel):
    digest: str
    gone_at: datetime | None = Field(description="Time at which the store confirmed that the bytes are gone")
    kept: str | None = Field(description="Reason why the bytes are kept")


class DeletionOut(BaseModel):
    """Report of a deletion: the copies that were verified as gone, and when."""

    id: str
    tenant: str | None = Field(description="Owner of the versions; null: removed by `tenora server gc`")
    subject: str = Field(description="Name of a version or an adapter, `gc`, or id of a file, an upload or a batch")
    state: Literal["running", "finished"]
    requested_at: datetime
    requested_by: str
    forced: bool
    listings_gone_at: datetime = Field(description="Time since which names and lists no longer show the versions")
    versions: list[DeletedVersionOut]
    nodes: list[DeletionNodeOut]
    blobs: list[DeletedBlobOut] = Field(
        description="For versions, empty until every live node has confirmed. Shown to platform keys only, because "
        "kept bytes belong to another tenant."
    )
    finished_at: datetime | None

    @classmethod
    def of(cls, report: Report, *, platform: bool) -> Self:
        deletion, nodes = report
        fates = deletion.blobs.items() if platform else ()
        return cls(
            id=deletion.id,
            tenant=deletion.tenant or None,
            subject=deletion.subject,
            state="running" if deletion.finished_at is None else "finished",
            requested_at=deletion.requested_at,
            requested_by=deletion.requested_by,
            forced=deletion.forced,
            listings_gone_at=deletion.requested_at,
            versions=[DeletedVersionOut.of(version, platform=platform) for version in deletion.versions],
            nodes=[_node(view, name=view.name if platform else None) for view in nodes],
            blobs=[DeletedBlobOut(digest=digest, gone_at=fate.gone_at, kept=fate.kept) for digest, fate in fates],
            finished_at=deletion.finished_at,
        )


@changes.delete(
    "/{adapter}/versions/{number}",
    status_code=202,
    summary="Delete a version; if `default` points at it, it falls back to its last ready target",
    responses=answers(404, 409),
)
async def delete_version(
    adapter: str, number: Number, owner: Writer, gateway: GatewayDep, response: Response, force: Force = False
) -> DeletionOut:
    """Names and lists stop showing the version at once. The report in the answer says when each copy is gone."""
    actor = owner.caller.key_id
    return _accepted(
        await gateway.deletions.delete_version(owner.tenant, adapter, number, force=force, actor=actor),
        owner,
        response,
    )


@changes.delete(
    "/{adapter}", status_code=202, summary="Delete an adapter and all its versions", responses=answers(404, 409)
)
async def delete_adapter(
    adapter: str, owner: Writer, gateway: GatewayDep, response: Response, force: Force = False
) -> DeletionOut:
    """Names and lists stop showing the adapter at once. The report in the answer says when each copy is gone."""
    actor = owner.caller.key_id
    return _accepted(
        await gateway.deletions.delete_adapter(owner.tenant, adapter, force=force, actor=actor), owner, response
    )


@changes.post(
    "/{adapter}/versions/{number}/retire",
    summary="Retire a version: new requests get 410 with the reason",
    responses=answers(400, 404, 409),
)
async def retire_version(
    adapter: str, number: Number, body: RetireRequest, owner: Writer, gateway: GatewayDep, force: Force = False
) -> VersionOut:
    """The version stays, with its files, and can be restored. Running requests end normally."""
    actor = owner.caller.key_id
    return VersionOut.of(
        await gateway.retirement.retire(owner.tenant, adapter, number, reason=body.reason, force=force, actor=actor),
        gateway.base,
    )


@changes.post(
    "/{adapter}/versions/{number}/restore",
    summary="Restore a retired version, or with a platform key a quarantined one that passes a smoke check",
    responses=answers(404, 409),
)
async def restore_version(adapter: str, number: Number, owner: Writer, gateway: GatewayDep) -> VersionOut:
    """The version serves requests again. If retiring it removed the alias `default`, the alias comes back."""
    caller = owner.caller
    admin = Scope.ADMIN in caller.scopes
    return VersionOut.of(
        await gateway.retirement.restore(owner.tenant, adapter, number, admin=admin, actor=caller.key_id),
        gateway.base,
    )


@own.get("", summary="List a tenant's deletions, newest first", responses=answers(400, 404))
async def list_deletions(
    owner: Reader, gateway: GatewayDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[DeletionOut]:
    """A deletion stays in this list after it has finished."""
    page = await gateway.deletions.list_all(tenant=owner.tenant, limit=limit, cursor=cursor)
    shown = [DeletionOut.of(report, platform=_admin(owner)) for report in page.data]
    return ListOut(data=shown, next_cursor=page.next_cursor)


@own.get("/{deletion}", summary="Show a deletion and the copies verified as gone", responses=answers(404))
async def get_deletion(deletion: str, owner: FollowingReader, gateway: GatewayDep) -> DeletionOut:
    """The report lists each node's engine and disk, and the time at which they were verified to hold nothing.

    A key with the scope `batch` alone sees deletions of files.
    """
    files_only = not {Scope.ADMIN, Scope.ADAPTERS_READ} & owner.caller.scopes
    report = await gateway.deletions.get(deletion, tenant=owner.tenant, files_only=files_only)
    return DeletionOut.of(report, platform=_admin(owner))


@everyones.get("", summary="List all deletions, newest first", responses=answers(400))
async def list_all_deletions(
    gateway: GatewayDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[DeletionOut]:
    """This list has the deletions of all tenants, and those of `tenora gc`."""
    page = await gateway.deletions.list_all(tenant=None, limit=limit, cursor=cursor)
    return ListOut(data=[DeletionOut.of(report, platform=True) for report in page.data], next_cursor=page.next_cursor)


@everyones.get("/{deletion}", summary="Show a deletion and the copies verified as gone", responses=answers(404))
async def get_any_deletion(deletion: str, gateway: GatewayDep) -> DeletionOut:
    """The report also names nodes and blobs, which tenants do not see."""
    return DeletionOut.of(await gateway.deletions.get(deletion, tenant=None), platform=True)


def _accepted(report: Report, owner: Owner, response: Response) -> DeletionOut:
    platform = owner.caller.tenant_slug is None
    mount = f"/admin/tenants/{owner.tenant}/deletions" if platform else "/v1/deletions"
    response.headers["location"] = f"{mount}/{report[0].id}"
    return DeletionOut.of(report, platform=_admin(owner))


def _admin(owner: Owner) -> bool:
    return Scope.ADMIN in owner.caller.scopes


def _node(view: NodeView, *, name: str | None) -> DeletionNodeOut:
    return DeletionNodeOut(
        node=view.node,
        name=name,
        reachable=view.reachable,
        engine_gone_at=view.engine_gone_at,
        disk_gone_at=view.disk_gone_at,
    )
