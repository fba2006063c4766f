"""Quota usage of tenants, computed from the rows themselves."""

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import adapters, pins, versions
from app.domain.adapters import VersionState
from app.domain.quotas import Usage

_LIVE = adapters.c.deleted_at.is_(None)
_COUNTED = versions.c.state.not_in([VersionState.DELETED, VersionState.REJECTED])


async def usage(connection: AsyncConnection, tenant_id: int) -> Usage:
    """Return counts of adapters, versions and pins, the size in bytes and the largest rank.

    Deleted and rejected versions are excluded.
    """
    count = select(func.count()).select_from(adapters).where(adapters.c.tenant_id == tenant_id, _LIVE)
    uploaded = (versions.c.uploaded_config_bytes, versions.c.uploaded_weights_bytes)
    sizes = versions.c.config_bytes + versions.c.weights_bytes + sum(func.coalesce(column, 0) for column in uploaded)
    size = func.coalesce(func.sum(sizes), 0)
    # All versions of a deleted adapter are deleted, and a deleted version has no pin.
    statement = (
        select(
            count.correlate(None).scalar_subquery(),
            func.count(versions.c.id),
            size,
            func.coalesce(func.max(versions.c.rank), 0),
            func.count(pins.c.version_id),
        )
        .select_from(adapters)
        .join(versions, versions.c.adapter_id == adapters.c.id)
        .join(pins, pins.c.version_id == versions.c.id, isouter=True)
        .where(adapters.c.tenant_id == tenant_id, _LIVE, _COUNTED)
    )
    adapter_count, version_count, total, rank, pinned = (await connection.execute(statement)).one()
    # PostgreSQL returns sums of bigint as Decimal.
    return Usage(adapters=adapter_count, versions=version_count, bytes=int(total), rank=rank, pinned_slots=pinned)


async def has_adapter(connection: AsyncConnection, tenant_id: int, slug: str) -> bool:
    is_used = exists().where(adapters.c.tenant_id == tenant_id, adapters.c.slug == slug, _LIVE)
    return bool(await connection.scalar(select(is_used)))


async def is_new(connection: AsyncConnection, adapter_id: int) -> bool:
    """Return whether the adapter never had a version."""
    return not await connection.scalar(select(exists().where(versions.c.adapter_id == adapter_id)))
