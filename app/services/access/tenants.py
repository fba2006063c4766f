"""Tenants: create, list, update and delete them."""

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import parse_slug
from app.database import audit, files, quotas, sessions, tenants, upload_refusals
from app.database.session import Database
from app.domain.access import Tenant
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict
from app.domain.pages import Page
from app.domain.quotas import Usage
from app.domain.searches import EVERYTHING, Search
from app.services.access.caller_cache import CallerCache
from app.services.common.file_removal import remove_all_files
from app.services.common.lookups import tenant_or_404
from app.services.common.quotas import limits_of
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    checked_name,
    checked_search,
    checked_weight,
    page_of,
    patched,
    patched_limits,
    read_position,
)

#: Sentinel for an argument that was not given, where None is a value.
KEEP: Final = object()


class TenantService:
    """Tenant service. ``actor`` is a key's id or ``cli``.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, cache: CallerCache, *, clock: Clock = utc_now) -> None:
        self._database, self._cache, self._clock = database, cache, clock

    async def create(self, slug: str, *, name: str | None = None, weight: float = 1.0, actor: str) -> Tenant:
        """Create a tenant. Its display name defaults to the slug.

        Raises:
            InvalidName, InvalidRequest
            Conflict: the slug is taken.
        """
        parse_slug(slug, field="tenant")
        name, weight = checked_name(slug if name is None else name), checked_weight(weight)
        now, salt = self._clock(), secrets.token_hex(32)
        try:
            async with self._database.write() as connection:
                tenant = await tenants.insert_tenant(connection, slug=slug, name=name, weight=weight, salt=salt, at=now)
                await _record(connection, now, actor, "tenant.create", slug, None, tenant)
        except IntegrityError as error:
            raise Conflict(f"There is already a tenant {slug!r}. Choose another slug.", param="slug") from error
        return tenant

    async def get(self, slug: str) -> Tenant:
        """Return a tenant that is not deleted.

        Raises:
            NotFound
        """
        async with self._database.read() as connection:
            return await tenant_or_404(connection, slug)

    async def usage(self, slug: str) -> tuple[Tenant, Usage]:
        """Return a tenant and its use of the quota.

        Raises:
            NotFound
        """
        async with self._database.read() as connection:
            tenant = await tenant_or_404(connection, slug)
            return tenant, await quotas.usage(connection, tenant.id)

    async def list(
        self, *, search: Search = EVERYTHING, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Tenant]:
        """List tenants, the oldest first unless the search sorts them.

        Raises:
            InvalidRequest
        """
        checked_limit(limit)
        after = read_position(cursor, checked_search(search))
        async with self._database.read() as connection:
            page_tenants = await tenants.list_tenants(connection, after=after, limit=limit + 1, search=search)
        return page_of(page_tenants, limit, lambda tenant: tenant.slug if search.sort.by_name else tenant.id)

    async def update(
        self,
        slug: str,
        *,
        name: str | None = None,
        disabled: bool | None = None,
        quota: object = KEEP,
        weight: float | None = None,
        limits: object = KEEP,
        actor: str,
    ) -> Tenant:
        """Update the given fields.

        Keys of a disabled tenant do not work. A new weight applies from the next request.

        Args:
            quota, limits: JSON merge patches, see :func:`app.services.common.validation.patched`.

        Raises:
            NotFound, InvalidRequest
        """
        if name is not None:
            checked_name(name)
        if weight is not None:
            checked_weight(weight)
        async with self._database.write() as connection:
            old = await tenant_or_404(connection, slug, lock=True)
            new = replace(
                old,
                name=old.name if name is None else name,
                disabled=old.disabled if disabled is None else disabled,
                quota=old.quota if quota is KEEP else patched("quota", old.quota, quota),
                weight=old.weight if weight is None else weight,
                limits=old.limits if limits is KEEP else patched_limits(old.limits, limits),
            )
            if new != old:
                await tenants.update_tenant(connection, new, quota=limits_of(new.quota))
                await _record(connection, self._clock(), actor, "tenant.update", slug, old, new)
        self._cache.clear()
        return new

    async def delete(self, slug: str, *, actor: str) -> None:
        """Delete a tenant with its files, sessions and refused uploads.

        Its keys stop working, and its slug becomes free.

        Raises:
            NotFound
            Conflict: the tenant still has adapters or unfinished batches.
        """
        async with self._database.write() as connection:
            tenant = await tenant_or_404(connection, slug, lock=True)
            if await tenants.has_adapters(connection, tenant.id):
                raise Conflict(f"The tenant {slug!r} still has adapters. Delete them first.")
            if await files.has_unfinished_batches(connection, tenant.id):
                raise Conflict(f"The tenant {slug!r} still has unfinished batches. Cancel them first.")
            now = self._clock()
            await remove_all_files(connection, tenant, at=now, actor=actor)
            await upload_refusals.remove_of_tenant(connection, tenant.id)
            await sessions.remove_of_tenant(connection, tenant.id)
            await tenants.mark_tenant_deleted(connection, tenant.id, at=now)
            await _record(connection, now, actor, "tenant.delete", slug, tenant, None)
        self._cache.clear()


async def _record(
    connection: AsyncConnection,
    at: datetime,
    actor: str,
    action: str,
    slug: str,
    before: Tenant | None,
    after: Tenant | None,
) -> None:
    states = {"before": _snapshot(before), "after": _snapshot(after)}
    await audit.record(connection, at=at, actor=actor, action=action, tenant=slug, subject=slug, **states)


def _snapshot(tenant: Tenant | None) -> dict[str, object] | None:
    if tenant is None:
        return None
    limits = {field: limit for field, limit in limits_of(tenant.quota).items() if limit is not None}
    shown: dict[str, object] = {"name": tenant.name, "disabled": tenant.disabled}
    # Values that were never set are left out of the audit trail.
    shown |= ({"quota": limits} if limits else {}) | ({"weight": tenant.weight} if tenant.weight != 1 else {})
    return shown | ({"limits": tenant.limits.as_json} if tenant.limits.as_json else {})
