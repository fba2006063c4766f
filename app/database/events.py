"""The audit trail as an event feed, and names of versions for engine events, which carry ids only."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import adapters, audit, tenants, versions
from app.domain.audit import AuditRow


async def newest_id(connection: AsyncConnection) -> int:
    """Return the highest id; 0 for an empty trail."""
    return int(await connection.scalar(select(func.max(audit.c.id))) or 0)


async def settled_id(connection: AsyncConnection, *, before: datetime) -> int:
    """Return the highest id written before a moment; all ids up to it are committed or rolled back."""
    return int(await connection.scalar(select(func.max(audit.c.id)).where(audit.c.at < before)) or 0)


async def rows_between(connection: AsyncConnection, above: int, upto: int, *, limit: int) -> list[AuditRow]:
    """List rows with ``above < id <= upto``, by id."""
    return await _rows(connection, audit.c.id > above, audit.c.id <= upto, limit=limit)


async def rows_above(connection: AsyncConnection, above: int, *, limit: int) -> list[AuditRow]:
    """List rows with an id above ``above``, by id."""
    return await _rows(connection, audit.c.id > above, limit=limit)


async def count_above(connection: AsyncConnection, above: int) -> int:
    """Count rows with an id above ``above``."""
    return int(await connection.scalar(select(func.count()).select_from(audit).where(audit.c.id > above)) or 0)


async def rows_with(connection: AsyncConnection, ids: Collection[int]) -> list[AuditRow]:
    """List the rows with these ids that exist, by id."""
    return await _rows(connection, audit.c.id.in_(list(ids)), limit=len(ids))


async def version_names(connection: AsyncConnection, ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Map version ids to their tenant's slug and their name (``pricing@3``)."""
    statement = (
        select(versions.c.id, tenants.c.slug, adapters.c.slug, versions.c.number)
        .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(versions.c.id.in_(list(ids)))
    )
    rows = (await connection.execute(statement)).all()
    return {identity: (tenant, f"{adapter}@{number}") for identity, tenant, adapter, number in rows}


async def _rows(connection: AsyncConnection, *conditions: ColumnElement[bool], limit: int) -> list[AuditRow]:
    statement = select(audit).where(*conditions).order_by(audit.c.id).limit(limit)
    return [
        AuditRow(row.id, row.at, row.actor, row.action, row.tenant, row.subject, row.before, row.after)
        for row in await connection.execute(statement)
    ]
