"""Sharing: a tenant lets others read one of its adapters and infer with it, as ``owner/adapter``. Nothing else.

Nothing is cached: every request looks a share up, so it ends with the request after its revocation. It has no
effect any more once the adapter or either tenant is deleted; a tenant that takes the slug of one that was shared
with has no part in that.

**Sharing tells nobody which tenants exist.** The owner's key may name any slug: what comes back, now and in the
list of shares, is the same whether somebody has it or not, and a slug that nobody has stays without effect even if a
tenant takes it later. So a slip in the name is not reported, except to a platform key, which may know every tenant.
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
from app.domain.shares import Share, SharedAdapter
from app.services.common.lookups import adapter_or_404, tenant_or_404
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, page_of, read_cursor

MAX_SHARES = 1000

_NUMBER = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_SLUG = re.compile("[a-z0-9._-]{1,63}", re.ASCII)


class SharingService:
    """The rules of sharing. ``tenant``, ``owner`` and ``adapter`` are slugs; ``actor`` is a key's id."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def share(
        self, tenant: str, adapter: str, recipient: str, *, actor: str, must_exist: bool
    ) -> tuple[Share, bool]:
        """Let another tenant use an adapter; returns the share and whether it is new.

        Args:
            must_exist: whether a recipient that there is not is an error: for platform keys only.

        Raises:
            NotFound, InvalidName, InvalidRequest, RegistryUnavailable
        """
        parse_slug(recipient, field="recipient")
        if recipient == tenant:
            raise InvalidRequest(f"recipient: found the owner {tenant!r}, allowed another tenant", param="recipient")
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            line = await adapter_or_404(connection, owner, adapter)
            other = await tenants.find_tenant(connection, recipient)
            if other is None and must_exist:
                raise NotFound(f"there is no tenant {recipient!r}", param="recipient")
            now, other_id = self._clock(), None if other is None else other.id
            share, created = await shares.put_share(
                connection, shares.NewShare(line.id, recipient, other_id, created_at=now, created_by=actor)
            )
            if created and await shares.count_shares(connection, line.id) > MAX_SHARES:
                raise InvalidRequest(f"recipient: found {MAX_SHARES} already, allowed {MAX_SHARES}", param="recipient")
            # Also where the share was there already: it may name somebody else now.
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
        """End a share, as of the next request.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            line = await adapter_or_404(connection, owner, adapter)
            possible = _SLUG.fullmatch(recipient) is not None
            if not (possible and await shares.remove_share(connection, line.id, recipient)):
                raise NotFound(f"the adapter {adapter!r} is not shared with {recipient[:80]!r}", param="recipient")
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
        self, tenant: str, adapter: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Share]:
        """With whom an adapter is shared, by name.

        Raises:
            NotFound, InvalidRequest, RegistryUnavailable
        """
        checked_limit(limit)
        after = read_cursor(cursor, _SLUG) or ""
        async with self._database.read() as connection:
            line = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            found = await shares.list_shares(connection, line.id, after=after, limit=limit + 1)
        return page_of(found, limit, lambda share: share.recipient)

    async def list_shared(
        self, tenant: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[SharedAdapter]:
        """Adapters that others share with a tenant.

        Raises:
            NotFound, InvalidRequest, RegistryUnavailable
        """
        checked_limit(limit)
        after = int(read_cursor(cursor, _NUMBER) or 0)
        async with self._database.read() as connection:
            recipient = await tenant_or_404(connection, tenant)
            found = await shares.list_shared(connection, recipient.id, after=after, limit=limit + 1)
        return page_of(found, limit, lambda adapter: adapter.id)

    async def get_shared(self, tenant: str, owner: str, adapter: str) -> SharedAdapter:
        """One adapter that is shared with a tenant.

        Raises:
            NotFound: the same whether the owner, the adapter or only the share does not exist.
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            return await _shared_or_404(connection, tenant, owner, adapter)

    async def list_shared_versions(
        self, tenant: str, owner: str, adapter: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Version]:
        """Its versions that can be asked for, newest first.

        Raises:
            NotFound, InvalidRequest, RegistryUnavailable
        """
        checked_limit(limit)
        below = int(read_cursor(cursor, _NUMBER) or MAX_VERSION_NUMBER)
        async with self._database.read() as connection:
            shared = await _shared_or_404(connection, tenant, owner, adapter)
            found = await versions.list_versions(
                connection, shared.id, below=below, limit=limit + 1, only=VersionFilter(state=VersionState.READY)
            )
        return page_of(found, limit, lambda version: version.number)

    async def get_shared_version(self, tenant: str, owner: str, adapter: str, number: int) -> Version:
        """One version of it that can be asked for.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.read() as connection:
            shared = await _shared_or_404(connection, tenant, owner, adapter)
            version = await versions.find_version(connection, shared.id, number)
        if version is None or version.state is not VersionState.READY:
            raise NotFound(f"there is no version {number} of the adapter '{owner}/{adapter}'", param="version")
        return version


async def _shared_or_404(connection: AsyncConnection, tenant: str, owner: str, adapter: str) -> SharedAdapter:
    recipient = await tenant_or_404(connection, tenant)
    try:
        slugs = parse_slug(owner, field="owner"), parse_slug(adapter, field="adapter")
        found = await shares.find_shared(connection, recipient.id, *slugs)
    except InvalidName:
        found = None
    if found is None:
        written = f"{owner[:80]}/{adapter[:80]}"
        raise NotFound(f"no adapter {written!r} is shared with this tenant", param="adapter")
    return found
