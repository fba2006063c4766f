"""Routes of aliases and their canaries, mounted with the adapter routes.

Every response that shows an alias carries its ETag. With ``If-Match``, a request fails with 412 if the alias has
changed since the caller read it.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response

from app.api.alias_schemas import AliasChangeOut, AliasOut, AliasPut, AliasReportOut, CanaryOut, CanaryPut
from app.api.auth import GatewayDep, Owner, require_owner
from app.api.schemas import Cursor, Limit, ListOut, answers
from app.domain.access import Scope
from app.services.common.preconditions import Precondition, etag, read_precondition
from app.services.common.validation import DEFAULT_LIMIT
from app.services.rollout.aliases import AliasReport, read_weights

router = APIRouter(tags=["aliases"])

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]


async def _precondition(
    if_match: Annotated[str | None, Header(description="ETag that the alias must have; `*`: it must exist")] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: the alias must not exist yet")] = None,
) -> Precondition:
    return read_precondition(if_match, if_none_match)


Condition = Annotated[Precondition, Depends(_precondition)]


@router.get("/{adapter}/aliases", summary="List an adapter's aliases", responses=answers(400, 404))
async def list_aliases(
    adapter: str, owner: Reader, gateway: GatewayDep, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[AliasOut]:
    """An alias is a movable name of a version. The alias `default` answers for the adapter's plain name."""
    page = await gateway.aliases.list(owner.tenant, adapter, limit=limit, cursor=cursor)
    return ListOut(data=[AliasOut.of(alias) for alias in page.data], next_cursor=page.next_cursor)


@router.get("/{adapter}/aliases/{alias}", summary="Show an alias and its canary", responses=answers(404))
async def get_alias(adapter: str, alias: str, owner: Reader, gateway: GatewayDep, response: Response) -> AliasReportOut:
    """The header `etag` identifies this state of the alias. Send it as `If-Match` with a change."""
    return _tagged(await gateway.aliases.get(owner.tenant, adapter, alias), response)


@router.put(
    "/{adapter}/aliases/{alias}",
    summary="Point an alias at a version, or split its traffic between versions",
    responses={**answers(400, 404, 409, 412), 201: {"model": AliasReportOut, "description": "The alias was created"}},
)
async def put_alias(
    adapter: str,
    alias: str,
    body: AliasPut,
    owner: Writer,
    gateway: GatewayDep,
    condition: Condition,
    response: Response,
) -> AliasReportOut:
    """The change takes effect with the next request. Traffic split by weights stays stable for each value of `user`."""
    report, created = await gateway.aliases.set(
        owner.tenant,
        adapter,
        alias,
        read_weights(body.version, body.weights),
        precondition=condition,
        actor=owner.caller.key_id,
    )
    response.status_code = 201 if created else 200
    return _tagged(report, response)


@router.delete(
    "/{adapter}/aliases/{alias}", status_code=204, summary="Delete an alias", responses=answers(400, 404, 409, 412)
)
async def delete_alias(adapter: str, alias: str, owner: Writer, gateway: GatewayDep, condition: Condition) -> None:
    """Requests that name the alias get 404 from then on. The versions stay."""
    await gateway.aliases.delete(owner.tenant, adapter, alias, precondition=condition, actor=owner.caller.key_id)


@router.post(
    "/{adapter}/aliases/{alias}/rollback",
    summary="Roll an alias back to its previous versions",
    responses=answers(400, 404, 409, 412),
)
async def rollback_alias(
    adapter: str, alias: str, owner: Writer, gateway: GatewayDep, condition: Condition, response: Response
) -> AliasReportOut:
    """A second call undoes the first."""
    report = await gateway.aliases.roll_back(
        owner.tenant, adapter, alias, precondition=condition, actor=owner.caller.key_id
    )
    return _tagged(report, response)


@router.get(
    "/{adapter}/aliases/{alias}/history", summary="List an alias's changes, newest first", responses=answers(400, 404)
)
async def list_alias_changes(
    adapter: str,
    alias: str,
    owner: Reader,
    gateway: GatewayDep,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[AliasChangeOut]:
    """Each change names the key that made it, or the canary."""
    page = await gateway.aliases.history(owner.tenant, adapter, alias, limit=limit, cursor=cursor)
    return ListOut(data=[AliasChangeOut.of(change) for change in page.data], next_cursor=page.next_cursor)


@router.put(
    "/{adapter}/aliases/{alias}/canary",
    status_code=201,
    summary="Start a canary: move traffic to another version step by step, with automatic rollback",
    responses=answers(400, 404, 409, 412),
)
async def start_canary(
    adapter: str, alias: str, body: CanaryPut, owner: Writer, gateway: GatewayDep, condition: Condition
) -> CanaryOut:
    """The server compares errors, empty answers and latency of both versions in each step.

    A breach moves all traffic back.
    """
    report = await gateway.canaries.start(
        owner.tenant,
        adapter,
        alias,
        body.version,
        body.policy.policy(),
        precondition=condition,
        actor=owner.caller.key_id,
    )
    return CanaryOut.of(report)


@router.get(
    "/{adapter}/aliases/{alias}/canary", summary="Show an alias's canary and its metrics", responses=answers(404)
)
async def get_canary(adapter: str, alias: str, owner: Reader, gateway: GatewayDep) -> CanaryOut:
    """The answer has the running canary, or else the last one, with the metrics of its current step."""
    return CanaryOut.of(await gateway.canaries.get(owner.tenant, adapter, alias))


@router.delete(
    "/{adapter}/aliases/{alias}/canary",
    summary="Cancel a canary and return all traffic to the baseline",
    responses=answers(400, 404, 409, 412),
)
async def cancel_canary(
    adapter: str, alias: str, owner: Writer, gateway: GatewayDep, condition: Condition
) -> CanaryOut:
    """The alias gets its baseline back with the next request."""
    report = await gateway.canaries.cancel(
        owner.tenant, adapter, alias, precondition=condition, actor=owner.caller.key_id
    )
    return CanaryOut.of(report)


def _tagged(report: AliasReport, response: Response) -> AliasReportOut:
    response.headers["etag"] = etag(report.alias.revision)
    return AliasReportOut.reported(report)
