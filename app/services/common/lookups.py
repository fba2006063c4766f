"""Look up tenants, adapters, versions and files by name or id, or raise NotFound."""

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import InvalidName
from adapters.identity import MAX_VERSION_NUMBER, parse_slug
from app.database import adapters, files, tenants, versions
from app.domain.access import Tenant
from app.domain.adapters import Adapter, Version
from app.domain.errors import NotFound
from app.domain.files import StoredFile, is_file_id


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
        raise NotFound(f"There is no tenant {slug[:80]!r}.", param="tenant")
    return tenant


async def adapter_or_404(connection: AsyncConnection, tenant: Tenant, slug: str) -> Adapter:
    try:
        adapter = await adapters.find_adapter(connection, tenant, parse_slug(slug, field="adapter"))
    except InvalidName:
        adapter = None
    if adapter is None:
        raise NotFound(f"There is no adapter {slug[:80]!r}.", param="adapter")
    return adapter


async def version_or_404(connection: AsyncConnection, adapter: Adapter, number: int) -> Version:
    possible = 1 <= number <= MAX_VERSION_NUMBER
    version = await versions.find_version(connection, adapter.id, number) if possible else None
    if version is None:
        raise NotFound(f"There is no version {str(number)[:20]} of the adapter {adapter.name!r}.", param="version")
    return version


async def file_or_404(
    connection: AsyncConnection, tenant: Tenant, file_id: str, *, lock: bool = False, param: str = "file_id"
) -> StoredFile:
    """Return a file that is not deleted.

    Args:
        lock: True to lock its row, so that it cannot be deleted before the transaction ends.
        param: field of the request that names the file.

    Raises:
        NotFound: the file does not exist, or belongs to another tenant.
    """
    file = await files.find_file(connection, tenant.id, file_id, lock=lock) if is_file_id(file_id) else None
    if file is None:
        raise NotFound(f"There is no file {file_id[:80]!r}.", param=param)
    return file
