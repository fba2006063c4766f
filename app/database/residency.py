"""Versions that a tenant may see in the engine, and their names."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import adapters, shares, tenants, versions
from app.domain.adapters import VersionState

_SHOWN = (versions.c.id, adapters.c.slug, versions.c.number)
_ANY_SHARE = select(shares.c.adapter_id).where(shares.c.adapter_id == adapters.c.id).exists()

_OWN: Select[Any] = (
    select(*_SHOWN, literal(None).label("owner"), _ANY_SHARE.label("shared"))
    .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
    .where(
        adapters.c.tenant_id == bindparam("tenant_id"),
        adapters.c.deleted_at.is_(None),
        versions.c.state != VersionState.DELETED,
    )
)
# Same conditions as app.database.resolution: every version shown can be named.
_SHARED: Select[Any] = (
    select(*_SHOWN, tenants.c.slug.label("owner"), literal(True))
    .join_from(shares, adapters, shares.c.adapter_id == adapters.c.id)
    .join(versions, versions.c.adapter_id == adapters.c.id)
    .join(tenants, adapters.c.tenant_id == tenants.c.id)
    .where(
        shares.c.tenant_id == bindparam("tenant_id"),
        adapters.c.deleted_at.is_(None),
        tenants.c.deleted_at.is_(None),
        tenants.c.disabled.is_(False),
        versions.c.state.not_in([VersionState.DELETED, VersionState.VALIDATING, VersionState.REJECTED]),
    )
)
_STATEMENT = union_all(_OWN, _SHARED)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version that a tenant may name.

    Attributes:
        name: name as the tenant writes it: ``pricing@3``, or ``retail/pricing@3`` for a version of another tenant.
        shared: True if requests of other tenants may run on it too.
    """

    name: str
    shared: bool


async def known_versions(connection: AsyncConnection, tenant_id: int) -> dict[int, KnownVersion]:
    """Map version ids to every version that a tenant may name.

    Runs one query, whose cost grows with the tenant's adapters and those shared with it.
    """
    rows = (await connection.execute(_STATEMENT, {"tenant_id": tenant_id})).all()
    return {
        version_id: KnownVersion(f"{owner}/{adapter}@{number}" if owner else f"{adapter}@{number}", bool(shared))
        for version_id, adapter, number, owner, shared in rows
    }
