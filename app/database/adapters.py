"""Adapters and their aliases; :mod:`app.database.resolution` resolves model names."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.canaries import cancel_canary
from app.database.filters import adapters_with, named, ordered
from app.database.tables import adapters, alias_history, alias_targets, aliases, versions
from app.domain.access import Tenant
from app.domain.adapters import Adapter, VersionState
from app.domain.aliases import Alias
from app.domain.filters import ANY, VersionFilter
from app.domain.limits.limits import Limits
from app.domain.searches import EVERYTHING, Search

_LIVE = adapters.c.deleted_at.is_(None)
_KEPT = versions.c.state.not_in([VersionState.DELETED, VersionState.REJECTED])


async def ensure_adapter(connection: AsyncConnection, tenant: Tenant, slug: str, *, at: datetime) -> int:
    """Return the id of an adapter; create it if it is new.

    The tenant's row must be locked (``find_tenant``).
    """
    adapter_id: int | None = await connection.scalar(
        select(adapters.c.id).where(adapters.c.tenant_id == tenant.id, adapters.c.slug == slug, _LIVE)
    )
    if adapter_id is not None:
        return adapter_id
    statement = insert(adapters).values(tenant_id=tenant.id, slug=slug, created_at=at)
    new: int = (await connection.execute(statement.returning(adapters.c.id))).scalar_one()
    return new


async def find_adapter(connection: AsyncConnection, tenant: Tenant, slug: str) -> Adapter | None:
    statement = select(adapters).where(adapters.c.tenant_id == tenant.id, adapters.c.slug == slug, _LIVE)
    rows = (await connection.execute(statement)).all()
    return next(iter(await _with_versions(connection, tenant, rows)), None)


async def list_adapters(
    connection: AsyncConnection,
    tenant: Tenant,
    *,
    after: str | None,
    limit: int,
    only: VersionFilter = ANY,
    search: Search = EVERYTHING,
) -> list[Adapter]:
    """List the tenant's adapters that the search finds and that have a version that matches ``only``.

    Args:
        after: position of the last row of the previous page, see :func:`app.database.filters.ordered`.
    """
    conditions = (adapters.c.tenant_id == tenant.id, _LIVE, *named(search, adapters.c.slug), *adapters_with(only))
    statement = select(adapters).where(*conditions)
    statement = ordered(statement, search.sort, identity=adapters.c.id, name=adapters.c.slug, after=after)
    rows = (await connection.execute(statement.limit(limit))).all()
    return await _with_versions(connection, tenant, rows)


async def count_adapters(connection: AsyncConnection) -> tuple[int, int]:
    """Return the number of adapters of all tenants, and of tenants that have one."""
    counts = select(func.count(), func.count(adapters.c.tenant_id.distinct())).where(_LIVE)
    count, tenants = (await connection.execute(counts)).one()
    return count, tenants


async def set_limits(connection: AsyncConnection, adapter_id: int, limits: Limits) -> None:
    await connection.execute(update(adapters).where(adapters.c.id == adapter_id).values(limits=limits.as_json))


async def _with_versions(connection: AsyncConnection, tenant: Tenant, rows: Sequence[Row[Any]]) -> list[Adapter]:
    ids = [row.id for row in rows]
    if not ids:
        return []
    # One statement reads versions and aliases, so that no alias refers to a version missing from the result.
    statement = (
        select(versions.c.adapter_id, versions.c.number, alias_targets.c.alias, alias_targets.c.weight)
        .join_from(versions, alias_targets, alias_targets.c.version_id == versions.c.id, isouter=True)
        .where(versions.c.adapter_id.in_(ids), _KEPT)
        .order_by(versions.c.number.desc(), alias_targets.c.alias)
    )
    numbers: dict[int, dict[int, None]] = defaultdict(dict)
    names: dict[int, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for adapter_id, number, alias, weight in await connection.execute(statement):
        numbers[adapter_id][number] = None
        if alias is not None:
            names[adapter_id][alias][number] = weight
    return [
        Adapter(
            row.id,
            row.slug,
            tenant.slug,
            row.created_at,
            tuple(numbers[row.id]),
            dict(sorted(names[row.id].items())),
            Limits.of(row.limits),
        )
        for row in rows
    ]


async def find_alias(connection: AsyncConnection, adapter_id: int, name: str) -> Alias | None:
    statement = (
        select(aliases, adapters.c.slug, versions.c.number, alias_targets.c.weight)
        .join_from(aliases, adapters, aliases.c.adapter_id == adapters.c.id)
        .join(
            alias_targets,
            (alias_targets.c.adapter_id == aliases.c.adapter_id) & (alias_targets.c.alias == aliases.c.name),
        )
        .join(versions, alias_targets.c.version_id == versions.c.id)
        .where(aliases.c.adapter_id == adapter_id, aliases.c.name == name)
        .order_by(versions.c.number.desc())
    )
    rows = (await connection.execute(statement)).all()
    if not rows:
        return None
    row, targets = rows[0], {row.number: row.weight for row in rows}
    return Alias(row.slug, row.name, row.revision, targets, row.canary_id, row.updated_at)


async def set_targets(
    connection: AsyncConnection,
    adapter_id: int,
    alias: str,
    targets: Mapping[int, int],
    *,
    at: datetime,
    actor: str,
    action: str,
    reason: str | None = None,
    canary_id: int | None = None,
) -> int:
    """Point an alias, new or existing, at versions and write its history.

    The tenant's row must be locked. Any change cancels the canary that runs on the alias, except a change by that
    canary.

    Args:
        targets: version id -> weight, at least one.
        action: move, split, rollback, canary or publish.
        canary_id: canary that makes the change; None for any other actor.

    Returns:
        The new revision of the alias.
    """
    numbers = select(versions.c.id, versions.c.number).where(versions.c.id.in_(targets))
    written = {str(number): targets[version_id] for version_id, number in await connection.execute(numbers)}
    revision = await _write_history(connection, adapter_id, alias, written, at, actor, action, reason)
    values = {"revision": revision, "canary_id": canary_id, "updated_at": at}
    conditions = (aliases.c.adapter_id == adapter_id, aliases.c.name == alias)
    if (await connection.execute(update(aliases).where(*conditions).values(**values))).rowcount == 0:
        await connection.execute(insert(aliases).values(adapter_id=adapter_id, name=alias, **values))
    await _drop_targets(connection, adapter_id, alias)
    rows = [
        {"adapter_id": adapter_id, "alias": alias, "version_id": version_id, "weight": weight}
        for version_id, weight in targets.items()
    ]
    await connection.execute(insert(alias_targets), rows)
    await cancel_canary(connection, adapter_id, alias, at=at, actor=actor, unless=canary_id)
    return revision


async def remove_alias(
    connection: AsyncConnection, adapter_id: int, alias: str, *, at: datetime, actor: str, reason: str | None = None
) -> None:
    """Remove an alias and keep its history; the tenant's row must be locked."""
    await _write_history(connection, adapter_id, alias, None, at, actor, "remove", reason)
    await _drop_targets(connection, adapter_id, alias)
    await connection.execute(delete(aliases).where(aliases.c.adapter_id == adapter_id, aliases.c.name == alias))
    await cancel_canary(connection, adapter_id, alias, at=at, actor=actor, unless=None)


async def mark_adapter_deleted(connection: AsyncConnection, adapter_id: int, *, at: datetime) -> None:
    await connection.execute(update(adapters).where(adapters.c.id == adapter_id).values(deleted_at=at))


async def _write_history(
    connection: AsyncConnection,
    adapter_id: int,
    alias: str,
    targets: Mapping[str, int] | None,
    at: datetime,
    actor: str,
    action: str,
    reason: str | None,
) -> int:
    row = insert(alias_history).values(
        adapter_id=adapter_id, alias=alias, at=at, actor=actor, action=action, targets=targets, reason=reason
    )
    revision: int = (await connection.execute(row.returning(alias_history.c.id))).scalar_one()
    return revision


async def _drop_targets(connection: AsyncConnection, adapter_id: int, alias: str) -> None:
    conditions = (alias_targets.c.adapter_id == adapter_id, alias_targets.c.alias == alias)
    await connection.execute(delete(alias_targets).where(*conditions))
