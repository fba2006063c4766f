"""Adapters and versions: resolving, listing, quarantining and deleting them. Publishing has its own module."""

import re
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import InvalidName
from adapters.identity import DEFAULT_ALIAS, MAX_VERSION_NUMBER, ModelName, VersionKey, parse_slug
from app.clock import Clock, utc_now
from app.database import adapters as stored
from app.database import audit
from app.database import versions as stored_versions
from app.database.session import Database
from app.errors import AdapterQuarantined, NotFound
from app.registry import Adapter, Page, Removed, ResolvedVersion, Tenant, Version, VersionState
from app.services.checks import DEFAULT_LIMIT, checked_limit, page_of, read_cursor
from app.services.tenants import tenant_or_404

_NUMBER = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_MAX_REASON = 500


class AdapterService:
    """The rules of adapters. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id, ``cli`` or ``engine``."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def resolve(self, tenant_id: int, name: ModelName) -> ResolvedVersion:
        """The one version that a name means for this tenant now.

        Raises:
            NotFound: there is none; the same, after the same query, if it is another tenant's.
            AdapterQuarantined, RegistryUnavailable
        """
        found = await self._database.lookup(lambda connection: stored.resolve(connection, tenant_id, name))
        if found is not None:
            version, state = found
            if state is VersionState.READY:
                return version
            if state is VersionState.QUARANTINED:
                raise AdapterQuarantined(f"the version {version.adapter}@{version.number} failed to load before")
        raise NotFound(f"there is no model {_written(name)!r}", param="model")

    async def list_adapters(
        self, tenant: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Adapter]:
        """A tenant's adapters, oldest first.

        Raises:
            NotFound, InvalidRequest, RegistryUnavailable
        """
        checked_limit(limit)
        after = int(read_cursor(cursor, _NUMBER) or 0)
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            found = await stored.list_adapters(connection, owner, after=after, limit=limit + 1)
        return page_of(found, limit, lambda adapter: adapter.id)

    async def get_adapter(self, tenant: str, adapter: str) -> Adapter:
        """One adapter with the numbers of its versions.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.read() as connection:
            return await _adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)

    async def list_versions(
        self, tenant: str, adapter: str, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Version]:
        """An adapter's versions, newest first.

        Raises:
            NotFound, InvalidRequest, RegistryUnavailable
        """
        checked_limit(limit)
        below = int(read_cursor(cursor, _NUMBER) or MAX_VERSION_NUMBER)
        async with self._database.read() as connection:
            line = await _adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            found = await stored_versions.list_versions(connection, line.id, below=below, limit=limit + 1)
        return page_of(found, limit, lambda version: version.number)

    async def get_version(self, tenant: str, adapter: str, number: int) -> Version:
        """One version, unless it is deleted.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.read() as connection:
            line = await _adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            return await _version_or_404(connection, line, number)

    async def quarantine(self, version_id: int, reason: str, *, actor: str = "engine") -> bool:
        """Take a version that failed to load out of service; False if it was not ready any more.

        Raises:
            RegistryUnavailable
        """
        # PostgreSQL refuses NUL in text, and the reason quotes whatever the engine said.
        reason = reason.replace("\0", "")[:_MAX_REASON]
        async with self._database.write() as connection:
            found = await stored_versions.quarantine_version(connection, version_id, reason)
            if found is None:
                return False
            tenant, adapter, number = found
            await audit.record(
                connection,
                at=self._clock(),
                actor=actor,
                action="version.quarantine",
                tenant=tenant,
                subject=f"{adapter}@{number}",
                before={"state": VersionState.READY.value},
                after={"state": VersionState.QUARANTINED.value, "reason": reason},
            )
        return True

    async def delete_version(self, tenant: str, adapter: str, number: int, *, actor: str) -> Removed:
        """Delete a version; ``default`` moves to the newest one still ready, or goes away.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            line = await _adapter_or_404(connection, owner, adapter)
            version = await _version_or_404(connection, line, number)
            now = self._clock()
            removed = await stored_versions.mark_versions_deleted(connection, line.id, number)
            moved_to = await self._release_aliases(connection, line, version, now)
            await audit.record(
                connection,
                at=now,
                actor=actor,
                action="version.delete",
                tenant=tenant,
                subject=f"{adapter}@{number}",
                before={"state": version.state.value, "digest": version.key.digest, "aliases": list(version.aliases)},
                after={DEFAULT_ALIAS: moved_to},
            )
            return await _removed(connection, removed)

    async def delete_adapter(self, tenant: str, adapter: str, *, actor: str) -> Removed:
        """Delete an adapter with all its versions; its name is free again.

        Raises:
            NotFound, RegistryUnavailable
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            line = await _adapter_or_404(connection, owner, adapter)
            now = self._clock()
            removed = await stored_versions.mark_versions_deleted(connection, line.id)
            await stored.remove_aliases(connection, line.id)
            await stored.mark_adapter_deleted(connection, line.id, at=now)
            await audit.record(
                connection,
                at=now,
                actor=actor,
                action="adapter.delete",
                tenant=tenant,
                subject=adapter,
                before={"versions": list(line.versions), "aliases": dict(line.aliases)},
            )
            return await _removed(connection, removed)

    async def _release_aliases(
        self, connection: AsyncConnection, line: Adapter, version: Version, now: datetime
    ) -> int | None:
        """Drop the version's aliases, move ``default`` on; returns the number that ``default`` means now."""
        await stored.remove_aliases(connection, line.id, version.key.version_id)
        if DEFAULT_ALIAS not in version.aliases:
            return line.aliases.get(DEFAULT_ALIAS)
        newest = await stored_versions.newest_ready(connection, line.id)
        if newest is None:
            return None
        version_id, number = newest
        await stored.move_alias(connection, line.id, DEFAULT_ALIAS, version_id, at=now)
        return number


async def _adapter_or_404(connection: AsyncConnection, tenant: Tenant, slug: str) -> Adapter:
    try:
        found = await stored.find_adapter(connection, tenant, parse_slug(slug, field="adapter"))
    except InvalidName:
        found = None
    if found is None:
        raise NotFound(f"there is no adapter {slug[:80]!r}", param="adapter")
    return found


async def _version_or_404(connection: AsyncConnection, line: Adapter, number: int) -> Version:
    possible = 1 <= number <= MAX_VERSION_NUMBER
    found = await stored_versions.find_version(connection, line.id, number) if possible else None
    if found is None:
        raise NotFound(f"there is no version {str(number)[:20]} of the adapter {line.name!r}", param="version")
    return found


async def _removed(connection: AsyncConnection, keys: list[VersionKey]) -> Removed:
    digests = {digest for key in keys for digest in (key.config_digest, key.weights_digest)}
    return Removed(
        keys=tuple(keys),
        digests=await stored_versions.unused_digests(connection, digests),
    )


def _written(name: ModelName) -> str:
    if name.alias is None:
        return f"{name.adapter}@{name.number}"
    return name.adapter if name.alias == DEFAULT_ALIAS else f"{name.adapter}:{name.alias}"
