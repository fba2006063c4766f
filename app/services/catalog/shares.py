"""Sharing: a tenant lets others read one of its adapters and infer with it, as ``owner/adapter``. Nothing else.

Shares are not cached. Every request looks its share up, so a revocation takes effect with the next request.
A share has no effect once the adapter or either tenant is deleted. A tenant that later takes the slug of a deleted
recipient does not inherit the share.

**Sharing does not reveal which tenants exist.** The owner's key may name any slug. The answer and the list of shares
are the same for existing and unknown slugs. A share with an unknown slug never takes effect, even if a tenant takes
that slug later. A typing error is therefore not reported, except to a platform key, which may know every tenant.
"""

import re

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import InvalidName
from adapters.identity import MAX_VERSION_NUMBER, parse_slug
from app.database import audit, shares, tenants, versions
from app.database.session import Database
from app.domain.adapters import Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest, NotFound
from app.domain.filters import VersionFilter
from app.domain.pages import Page
from app.domain.searches import BY_NAME, EVERYTHING, Search
from app.domain.shares import Share, SharedAdapter
from app.services.common.lookups import adapter_or_404, tenant_or_404
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    checked_search,
    page_of,
    read_cursor,
    read_position,
)

MAX_SHARES = 1000

_NUMBER = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_SLUG = re.compile("[a-z0-9._-]{1,63}", re.ASCII)


class SharingService:
    """Sharing service. ``tenant``, ``owner`` and ``adapter`` are slugs; ``actor`` is a key's id.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def share(
        self, tenant: str, adapter: str, recipient: str, *, actor: str, must_exist: bool
    ) -> tuple[Share, bool]:
        """Share an adapter with another tenant. Returns the share, and whether it is new.

        Args:
            must_exist: whether an unknown recipient is an error; for platform keys only.

        Raises:
            NotFound, InvalidName, InvalidRequest
        """
        parse_slug(recipient, field="recipient")
        if recipient == tenant:
            message = f"recipient is {tenant!r}, which owns the adapter. Name another tenant."
            raise InvalidRequest(message, param="recipient")
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_row = await adapter_or_404(connection, owner, adapter)
            other = await tenants.find_tenant(connection, recipient)
            if other is None and must_exist:
                raise NotFound(f"There is no tenant {recipient!r}.", param="recipient")
            now, other_id = self._clock(), None if other is None else other.id
            share, created = await shares.put_share(
                connection, shares.NewShare(adapter_row.id, recipient, other_id, created_at=now, created_by=actor)
            )
            if created and await shares.count_shares(connection, adapter_row.id) > MAX_SHARES:
                message = f"The adapter is shared with {MAX_SHARES} tenants, which is the limit. Revoke a share first."
                raise InvalidRequest(message, param="recipient")
            # Audit a repeated share as well: the slug may belong to another tenant by now.
            await audit.record(
                connection,
                at=now,
                actor=actor,
                action="adapter.share",
                tenant=tenant,
                subject=adapter,
                after={"recipient": recipient},
            )
        return share, created

    async def unshare(self, tenant: str, adapter: str, recipient: str, *, actor: str) -> None:
        """Revoke a share. This takes effect with the next request.

        Raises:
            NotFound
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            adapter_row = await adapter_or_404(connection, owner, adapter)
            possible = _SLUG.fullmatch(recipient) is not None
            if not (possible and await shares.remove_share(connection, adapter_row.id, recipient)):
                raise NotFound(f"The adapter {adapter!r} is not shared with {recipient[:80]!r}.", param="recipient")
            await audit.record(
                connection,
                at=self._clock(),
                actor=actor,
                action="adapter.unshare",
                tenant=tenant,
                subject=adapter,
                before={"recipient": recipient},
            )

    async def list_shares(
        self,
        tenant: str,
        adapter: str,
        *,
        search: Search = BY_NAME,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[Share]:
        """List the recipients of an adapter that the search finds, always by name.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        checked_search(search)
        after = read_cursor(cursor, _SLUG)
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            rows = await shares.list_shares(connection, adapter_row.id, after=after, limit=limit + 1, search=search)
        return page_of(rows, limit, lambda share: share.recipient)

    async def list_shared(
        self, tenant: str, *, search: Search = EVERYTHING, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[SharedAdapter]:
        """List the adapters that others share with a tenant and that the search finds, the oldest first unless sorted.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        after = read_position(cursor, checked_search(search))
        async with self._database.read() as connection:
            recipient = await tenant_or_404(connection, tenant)
            rows = await shares.list_shared(connection, recipient.id, after=after, limit=limit + 1, search=search)
        return page_of(rows, limit, lambda shared: shared.full_name if search.sort.by_name else shared.id)

    async def get_shared(self, tenant: str, owner: str, adapter: str) -> SharedAdapter:
        """Return one adapter that is shared with a tenant.

        Raises:
            NotFound: the owner, the adapter or the share does not exist. The message is the same in every case.
        """
        async with self._database.read() as connection:
            return await _shared_or_404(connection, tenant, owner, adapter)

    async def list_shared_versions(
        self, tenant: str, owner: str, adapter: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Version]:
        """List the ready versions of a shared adapter, the newest first.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        below = int(read_cursor(cursor, _NUMBER) or MAX_VERSION_NUMBER)
        async with self._database.read() as connection:
            shared = await _shared_or_404(connection, tenant, owner, adapter)
            rows = await versions.list_versions(
                connection, shared.id, below=below, limit=limit + 1, only=VersionFilter(state=VersionState.READY)
            )
        return page_of(rows, limit, lambda version: version.number)

    async def get_shared_version(self, tenant: str, owner: str, adapter: str, number: int) -> Version:
        """Return one ready version of a shared adapter.

        Raises:
            NotFound
        """
        async with self._database.read() as connection:
            shared = await _shared_or_404(connection, tenant, owner, adapter)
            version = await versions.find_version(connection, shared.id, number)
        if version is None or version.state is not VersionState.READY:
            raise NotFound(f"There is no version {number} of the adapter '{owner}/{adapter}'.", param="version")
        return version


async def _shared_or_404(connection: AsyncConnection, tenant: str, owner: str, adapter: str) -> SharedAdapter:
    recipient = await tenant_or_404(connection, tenant)
    try:
        slugs = parse_slug(owner, field="owner"), parse_slug(adapter, field="adapter")
        shared = await shares.find_shared(connection, recipient.id, *slugs)
    except InvalidName:
        shared = None
    if shared is None:
        name = f"{owner[:80]}/{adapter[:80]}"
        raise NotFound(f"The adapter {name!r} does not exist or is not shared with this tenant.", param="adapter")
    return shared
