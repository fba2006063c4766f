"""Canaries in the registry, and their figures per node."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit
from app.database.filters import named, ordered
from app.database.tables import adapters, canaries, canary_figures, tenants, versions
from app.domain.adapters import VersionState
from app.domain.canaries import Canary, CanaryState
from app.domain.searches import EVERYTHING, Search

_INSERTS: Mapping[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
_baseline = versions.alias("baseline")
_candidate = versions.alias("candidate")
_SHOWN: Select[Any] = (
    select(
        canaries,
        _baseline.c.number.label("baseline"),
        _candidate.c.number.label("candidate"),
    )
    .join_from(canaries, _baseline, canaries.c.baseline_id == _baseline.c.id)
    .join(_candidate, canaries.c.candidate_id == _candidate.c.id)
)


@dataclass(frozen=True, slots=True)
class RunningCanary:
    """A running canary with the data to judge it.

    Attributes:
        tenant, adapter: slugs.
        candidate_state: state of the candidate version.
        candidate_reason: reason why the candidate is not ready.
    """

    canary: Canary
    tenant: str
    adapter: str
    candidate_state: VersionState
    candidate_reason: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures in stored form; ``ttft`` holds the counts of a histogram."""

    requests: int
    errors: int
    empties: int
    ttft: tuple[int, ...]


#: (alias revision, version's row id) -> one entry per node.
NodeCounts = Mapping[tuple[int, int], Sequence[Counts]]


async def insert_canary(
    connection: AsyncConnection,
    adapter_id: int,
    alias: str,
    *,
    baseline_id: int,
    candidate_id: int,
    policy: Mapping[str, Any],
    at: datetime,
    actor: str,
) -> int:
    """Add a running canary before its first step; return its id.

    Raises:
        sqlalchemy.exc.IntegrityError: a canary already runs on this alias.
    """
    statement = insert(canaries).values(
        adapter_id=adapter_id,
        alias=alias,
        baseline_id=baseline_id,
        candidate_id=candidate_id,
        policy=dict(policy),
        step=0,
        revision=0,
        step_started_at=at,
        state=CanaryState.RUNNING,
        created_at=at,
        created_by=actor,
    )
    canary_id: int = (await connection.execute(statement.returning(canaries.c.id))).scalar_one()
    return canary_id


async def newest_canary(connection: AsyncConnection, adapter_id: int, alias: str) -> Canary | None:
    """Return the running canary of an alias, or the last one that ran."""
    conditions = (canaries.c.adapter_id == adapter_id, canaries.c.alias == alias)
    statement = _SHOWN.where(*conditions).order_by(canaries.c.id.desc()).limit(1)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _canary(row)


async def running_canaries(
    connection: AsyncConnection,
    *,
    tenant_id: int | None = None,
    after: str | None = None,
    limit: int | None = None,
    search: Search = EVERYTHING,
) -> list[RunningCanary]:
    """List the running canaries that the search finds by ``tenant/adapter:alias``.

    Args:
        tenant_id: only this tenant's; None for all.
        after: position of the last row of the previous page, see :func:`app.database.filters.ordered`.
    """
    name = tenants.c.slug + "/" + adapters.c.slug + ":" + canaries.c.alias
    statement = (
        _SHOWN.add_columns(
            tenants.c.slug.label("tenant"),
            adapters.c.slug.label("adapter"),
            _candidate.c.state.label("candidate_state"),
            _candidate.c.state_reason.label("candidate_reason"),
        )
        .join(adapters, canaries.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(canaries.c.state == CanaryState.RUNNING, *named(search, name))
        .limit(limit)
    )
    statement = ordered(statement, search.sort, identity=canaries.c.id, name=name, after=after)
    if tenant_id is not None:
        statement = statement.where(adapters.c.tenant_id == tenant_id)
    return [
        RunningCanary(_canary(row), row.tenant, row.adapter, VersionState(row.candidate_state), row.candidate_reason)
        for row in await connection.execute(statement)
    ]


async def end_canary(
    connection: AsyncConnection, canary: Canary, state: CanaryState, *, reason: Mapping[str, Any], at: datetime
) -> bool:
    """End a canary by compare-and-set; False if another actor changed it since it was read."""
    statement = update(canaries).where(*_unchanged(canary)).values(state=state, reason=dict(reason), ended_at=at)
    return (await connection.execute(statement)).rowcount > 0


async def cancel_canary(
    connection: AsyncConnection, adapter_id: int, alias: str, *, at: datetime, actor: str, unless: int | None
) -> None:
    """Cancel the canary on an alias that another actor moves, and write the audit row.

    Args:
        unless: id of the canary that moves the alias; it is not cancelled.
    """
    canary = await newest_canary(connection, adapter_id, alias)
    if canary is None or canary.state is not CanaryState.RUNNING or canary.id == unless:
        return
    figures = await read_figures(connection, canary.id)
    sides = {"baseline": (canary.baseline, canary.baseline_id), "candidate": (canary.candidate, canary.candidate_id)}
    reason = {
        "code": "alias_moved",
        "message": "The alias was moved.",
        "step": canary.step,
        **{side: _sums(number, figures.get((canary.revision, row), ())) for side, (number, row) in sides.items()},
    }
    await end_canary(connection, canary, CanaryState.CANCELLED, reason=reason, at=at)
    names = (
        select(tenants.c.slug.label("tenant"), adapters.c.slug.label("adapter"))
        .join_from(adapters, tenants, adapters.c.tenant_id == tenants.c.id)
        .where(adapters.c.id == adapter_id)
    )
    owner = (await connection.execute(names)).one()
    subject = f"{owner.adapter}:{alias}"
    after = {"canary": canary.id, **reason}
    await audit.record(
        connection, at=at, actor=actor, action="canary.cancel", tenant=owner.tenant, subject=subject, after=after
    )


async def claim_canary(connection: AsyncConnection, canary: Canary, *, step: int, at: datetime) -> bool:
    """Move a canary to another step by compare-and-set; False if another actor changed it since it was read."""
    statement = update(canaries).where(*_unchanged(canary)).values(step=step, step_started_at=at)
    return (await connection.execute(statement)).rowcount > 0


async def set_revision(connection: AsyncConnection, canary_id: int, revision: int) -> None:
    """Store the alias revision of the step that has just begun."""
    await connection.execute(update(canaries).where(canaries.c.id == canary_id).values(revision=revision))


async def add_figures(
    connection: AsyncConnection,
    canary_id: int,
    revision: int,
    version_id: int,
    node: str,
    counts: Counts,
    *,
    at: datetime,
) -> None:
    """Add to the counts of this node; each node writes only its own rows."""
    key = {"canary_id": canary_id, "revision": revision, "version_id": version_id, "node": node}
    conditions = [canary_figures.c[name] == value for name, value in key.items()]
    stored = (await connection.execute(select(canary_figures).where(*conditions).with_for_update())).one_or_none()
    if stored is None:
        values = {"requests": counts.requests, "errors": counts.errors, "empties": counts.empties}
        row = {**key, **values, "ttft": list(counts.ttft), "updated_at": at}
        await connection.execute(insert(canary_figures).values(row))
        return
    total = {
        "requests": stored.requests + counts.requests,
        "errors": stored.errors + counts.errors,
        "empties": stored.empties + counts.empties,
        "ttft": [mine + more for mine, more in zip(stored.ttft, counts.ttft, strict=True)],
    }
    await connection.execute(update(canary_figures).where(*conditions).values(**total, updated_at=at))


async def add_sample(
    connection: AsyncConnection,
    canary_id: int,
    revision: int,
    version_id: int,
    recipient_id: int,
    counts: Counts,
    *,
    at: datetime,
) -> None:
    """Store the one answer that counts for a recipient of a share; no effect if a node has stored one already."""
    row = {
        "canary_id": canary_id,
        "revision": revision,
        "version_id": version_id,
        # Takes the place of a node id, so that the first node to write the row wins.
        "node": f"recipient {recipient_id}",
        "requests": counts.requests,
        "errors": counts.errors,
        "empties": counts.empties,
        "ttft": list(counts.ttft),
        "updated_at": at,
    }
    await connection.execute(_INSERTS[connection.dialect.name](canary_figures).values(row).on_conflict_do_nothing())


async def read_figures(connection: AsyncConnection, canary_id: int) -> NodeCounts:
    """Return the counts of every node for a canary, and the sample of every recipient."""
    return (await _figures(connection, canary_figures.c.canary_id == canary_id))[canary_id]


async def figures_of(connection: AsyncConnection, canary_ids: Collection[int]) -> Mapping[int, NodeCounts]:
    """Return the counts and samples of these canaries by id; canaries without figures are absent."""
    return await _figures(connection, canary_figures.c.canary_id.in_(canary_ids))


async def running_figures(connection: AsyncConnection) -> Mapping[int, NodeCounts]:
    """Return the counts and samples of every running canary by id; canaries without figures are absent."""
    running = select(canaries.c.id).where(canaries.c.state == CanaryState.RUNNING)
    return await _figures(connection, canary_figures.c.canary_id.in_(running))


async def _figures(connection: AsyncConnection, condition: ColumnElement[bool]) -> Mapping[int, NodeCounts]:
    figures: dict[int, dict[tuple[int, int], list[Counts]]] = defaultdict(lambda: defaultdict(list))
    for row in await connection.execute(select(canary_figures).where(condition)):
        counts = Counts(row.requests, row.errors, row.empties, tuple(row.ttft))
        figures[row.canary_id][row.revision, row.version_id].append(counts)
    return figures


def _sums(number: int, nodes: Sequence[Counts]) -> dict[str, int]:
    return {
        "version": number,
        "requests": sum(node.requests for node in nodes),
        "errors": sum(node.errors for node in nodes),
        "empties": sum(node.empties for node in nodes),
    }


def _unchanged(canary: Canary) -> tuple[Any, ...]:
    return (
        canaries.c.id == canary.id,
        canaries.c.revision == canary.revision,
        canaries.c.state == CanaryState.RUNNING,
    )


def _canary(row: Row[Any]) -> Canary:
    return Canary(
        id=row.id,
        adapter_id=row.adapter_id,
        alias=row.alias,
        baseline=row.baseline,
        candidate=row.candidate,
        baseline_id=row.baseline_id,
        candidate_id=row.candidate_id,
        policy=row.policy,
        step=row.step,
        revision=row.revision,
        step_started_at=row.step_started_at,
        state=CanaryState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        created_by=row.created_by,
        ended_at=row.ended_at,
    )
