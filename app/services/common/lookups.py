"""Look up tenants, adapters and versions by name, or raise NotFound."""

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import InvalidName
from adapters.identity import MAX_VERSION_NUMBER, parse_slug
from app.database import adapters, tenants, versions
from app.domain.access import Tenant
from app.domain.adapters import Adapter, Version
from app.domain.errors import NotFound


async def tenant_or_404(connection: AsyncConnection, slug: str, *, lock: bool = False) -> Tenant:
    """Return a tenant that is not deleted. ``lock`` locks its row (see ``find_tenant``).

    Raises:
        NotFound: no tenant has the slug, or it is not a valid slug.
    """
    try:
        tenant = await tenants.find_tenant(connection, parse_slug(slug, field="tenant"), lock=lock)
    except InvalidName:
        tenant = None
    if tenant is None:
        raise NotFound(f"there is no tenant {slug[:80]!r}", param="tenant")
    return tenant


async def adapter_or_404(connection: AsyncConnection, tenant: Tenant, slug: str) -> Adapter:
    try:
        found = await adapters.find_adapter(connection, tenant, parse_slug(slug, field="adapter"))
    except InvalidName:
        found = None
    if found is None:
        raise NotFound(f"there is no adapter {slug[:80]!r}", param="adapter")
    return found


async def version_or_404(connection: AsyncConnection, line: Adapter, number: int) -> Version:
    possible = 1 <= number <= MAX_VERSION_NUMBER
    found = await versions.find_version(connection, line.id, number) if possible else None
    if found is None:
        raise NotFound(f"there is no version {str(number)[:20]} of the adapter {line.name!r}", param="version")
    return found
