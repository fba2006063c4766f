"""Which versions a tenant may know to be in the engine, and by what names."""

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
# The conditions of app.database.resolution: what is shown is what can be named.
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
        name: as that tenant writes it: ``pricing@3``, ``retail/pricing@3`` of another's.
        shared: whether requests of other tenants may run on it too.
    """

    name: str
    shared: bool


async def known_versions(connection: AsyncConnection, tenant_id: int) -> dict[int, KnownVersion]:
    """Version id -> every version that a tenant may name. One query, whose cost is the tenant's own doing."""
    found = (await connection.execute(_STATEMENT, {"tenant_id": tenant_id})).all()
    return {
        version_id: KnownVersion(f"{owner}/{adapter}@{number}" if owner else f"{adapter}@{number}", bool(shared))
        for version_id, adapter, number, owner, shared in found
    }
