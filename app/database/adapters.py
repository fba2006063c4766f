"""Adapters, their aliases, and the one query that resolves a model name."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import ModelName, VersionKey
from app.database.tables import adapters, aliases, versions
from app.registry import Adapter, ResolvedVersion, Tenant, VersionState

_LIVE = adapters.c.deleted_at.is_(None)
_KEPT = versions.c.state != VersionState.DELETED

_RESOLVABLE: Select[Any] = (
    select(
        versions.c.id,
        versions.c.number,
        versions.c.state,
        versions.c.config_digest,
        versions.c.weights_digest,
        versions.c.config_bytes,
        versions.c.weights_bytes,
    )
    .join_from(adapters, versions, versions.c.adapter_id == adapters.c.id)
    .where(adapters.c.tenant_id == bindparam("tenant_id"), adapters.c.slug == bindparam("slug"), _LIVE)
)
_BY_NUMBER = _RESOLVABLE.where(versions.c.number == bindparam("number"))
_BY_ALIAS = _RESOLVABLE.join(aliases, aliases.c.version_id == versions.c.id).where(
    aliases.c.adapter_id == adapters.c.id, aliases.c.name == bindparam("alias")
)


def resolve(connection: Connection, tenant_id: int, name: ModelName) -> tuple[ResolvedVersion, VersionState] | None:
    """The version that a name means for this tenant, whatever its state, in one query; None if there is none.

    For ``Database.lookup``.
    """
    if name.alias is None:
        parameters = {"tenant_id": tenant_id, "slug": name.adapter, "number": name.number}
        found = connection.execute(_BY_NUMBER, parameters)
    else:
        parameters = {"tenant_id": tenant_id, "slug": name.adapter, "alias": name.alias}
        found = connection.execute(_BY_ALIAS, parameters)
    row = found.one_or_none()
    if row is None:
        return None
    key = VersionKey(row.id, row.config_digest, row.weights_digest, row.config_bytes, row.weights_bytes)
    return ResolvedVersion(key, name.adapter, row.number, name.alias), VersionState(row.state)


async def ensure_adapter(connection: AsyncConnection, tenant: Tenant, slug: str, *, at: datetime) -> int:
    """The id of that adapter, made if it is new. The tenant's row must be locked (``find_tenant``)."""
    found: int | None = await connection.scalar(
        select(adapters.c.id).where(adapters.c.tenant_id == tenant.id, adapters.c.slug == slug, _LIVE)
    )
    if found is not None:
        return found
    statement = insert(adapters).values(tenant_id=tenant.id, slug=slug, created_at=at)
    new: int = (await connection.execute(statement.returning(adapters.c.id))).scalar_one()
    return new


async def find_adapter(connection: AsyncConnection, tenant: Tenant, slug: str) -> Adapter | None:
    statement = select(adapters).where(adapters.c.tenant_id == tenant.id, adapters.c.slug == slug, _LIVE)
    rows = (await connection.execute(statement)).all()
    return next(iter(await _with_versions(connection, tenant, rows)), None)


async def list_adapters(connection: AsyncConnection, tenant: Tenant, *, after: int, limit: int) -> list[Adapter]:
    """The tenant's adapters with an id above ``after``, by id."""
    statement = select(adapters).where(adapters.c.tenant_id == tenant.id, adapters.c.id > after, _LIVE)
    rows = (await connection.execute(statement.order_by(adapters.c.id).limit(limit))).all()
    return await _with_versions(connection, tenant, rows)


async def _with_versions(connection: AsyncConnection, tenant: Tenant, rows: Sequence[Row[Any]]) -> list[Adapter]:
    ids = [row.id for row in rows]
    if not ids:
        return []
    # One statement for both, so that no alias is shown whose version is not.
    statement = (
        select(versions.c.adapter_id, versions.c.number, aliases.c.name)
        .join_from(versions, aliases, aliases.c.version_id == versions.c.id, isouter=True)
        .where(versions.c.adapter_id.in_(ids), _KEPT)
        .order_by(versions.c.number.desc(), aliases.c.name)
    )
    numbers: dict[int, dict[int, None]] = defaultdict(dict)
    names: dict[int, dict[str, int]] = defaultdict(dict)
    for adapter_id, number, alias in await connection.execute(statement):
        numbers[adapter_id][number] = None
        if alias is not None:
            names[adapter_id][alias] = number
    return [
        Adapter(row.id, row.slug, tenant.slug, row.created_at, tuple(numbers[row.id]), names[row.id]) for row in rows
    ]


async def move_alias(
    connection: AsyncConnection, adapter_id: int, name: str, version_id: int, *, at: datetime
) -> int | None:
    """Point an alias at a version; the tenant's row must be locked.

    Returns:
        The number of the version that it pointed at before; None if the alias is new.
    """
    here = (aliases.c.adapter_id == adapter_id, aliases.c.name == name)
    before = await connection.scalar(
        select(versions.c.number).join(aliases, aliases.c.version_id == versions.c.id).where(*here)
    )
    values = {"version_id": version_id, "updated_at": at}
    if before is None:
        await connection.execute(insert(aliases).values(adapter_id=adapter_id, name=name, **values))
    else:
        await connection.execute(update(aliases).where(*here).values(**values))
    return before


async def remove_aliases(connection: AsyncConnection, adapter_id: int, version_id: int | None = None) -> None:
    """Drop the adapter's aliases: those of one version, or all."""
    statement = delete(aliases).where(aliases.c.adapter_id == adapter_id)
    if version_id is not None:
        statement = statement.where(aliases.c.version_id == version_id)
    await connection.execute(statement)


async def mark_adapter_deleted(connection: AsyncConnection, adapter_id: int, *, at: datetime) -> None:
    await connection.execute(update(adapters).where(adapters.c.id == adapter_id).values(deleted_at=at))
