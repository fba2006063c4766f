"""Tenants in the registry."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.filters import named, ordered
from app.database.tables import adapters, tenants
from app.domain.access import Tenant
from app.domain.limits.limits import Limits
from app.domain.quotas import Quota
from app.domain.searches import EVERYTHING, Search

_COLUMNS = (
    tenants.c.id,
    tenants.c.slug,
    tenants.c.name,
    tenants.c.disabled,
    tenants.c.created_at,
    tenants.c.quota,
    tenants.c.weight,
    tenants.c.limits,
)
_LIVE = tenants.c.deleted_at.is_(None)


def _tenant(row: Row[*tuple[Any, ...]]) -> Tenant:
    return Tenant(
        id=row.id,
        slug=row.slug,
        name=row.name,
        disabled=row.disabled,
        created_at=row.created_at,
        quota=Quota(**{field.name: row.quota.get(field.name) for field in fields(Quota)}),
        weight=row.weight,
        limits=Limits.of(row.limits),
    )


async def insert_tenant(
    connection: AsyncConnection, *, slug: str, name: str, weight: float, salt: str, at: datetime
) -> Tenant:
    """Add a tenant.

    Raises:
        sqlalchemy.exc.IntegrityError: an existing tenant has this slug.
    """
    statement = insert(tenants).values(slug=slug, name=name, disabled=False, weight=weight, salt=salt, created_at=at)
    row = (await connection.execute(statement.returning(*_COLUMNS))).one()
    return _tenant(row)


async def find_tenant(connection: AsyncConnection, slug: str, *, lock: bool = False) -> Tenant | None:
    """Find a tenant that is not deleted.

    Args:
        lock: True to lock its row until the transaction ends. Every change of a tenant or its adapters takes this lock
            first, so that these changes are serialised (SQLite: the write lock has the same effect).
    """
    statement = select(*_COLUMNS).where(tenants.c.slug == slug, _LIVE)
    if lock:
        # Weaker than FOR UPDATE: does not block inserts of rows that reference the tenant, such as keys.
        statement = statement.with_for_update(key_share=True)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _tenant(row)


async def salt_of(connection: AsyncConnection, tenant_id: int) -> str:
    """Return the tenant's secret for the engine's prefix cache."""
    salt: str = (await connection.execute(select(tenants.c.salt).where(tenants.c.id == tenant_id))).scalar_one()
    return salt


async def list_tenants(
    connection: AsyncConnection, *, after: str | None, limit: int, search: Search = EVERYTHING
) -> list[Tenant]:
    """List tenants that are not deleted and that the search finds by slug or display name.

    Args:
        after: position of the last row of the previous page, see :func:`app.database.filters.ordered`.
    """
    statement = select(*_COLUMNS).where(_LIVE, *named(search, tenants.c.slug, tenants.c.name))
    statement = ordered(statement, search.sort, identity=tenants.c.id, name=tenants.c.slug, after=after)
    return [_tenant(row) for row in await connection.execute(statement.limit(limit))]


async def update_tenant(connection: AsyncConnection, tenant: Tenant, *, quota: Mapping[str, int | None]) -> None:
    """Store the mutable fields of a tenant, with its quota as numbers."""
    limits = {field: limit for field, limit in quota.items() if limit is not None}
    values = {"name": tenant.name, "disabled": tenant.disabled, "quota": limits, "weight": tenant.weight}
    values["limits"] = tenant.limits.as_json
    await connection.execute(update(tenants).where(tenants.c.id == tenant.id).values(values))


async def mark_tenant_deleted(connection: AsyncConnection, tenant_id: int, *, at: datetime) -> None:
    await connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(deleted_at=at))


async def has_adapters(connection: AsyncConnection, tenant_id: int) -> bool:
    living = exists().where(adapters.c.tenant_id == tenant_id, adapters.c.deleted_at.is_(None))
    return bool(await connection.scalar(select(living)))
