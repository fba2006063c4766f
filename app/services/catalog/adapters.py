"""Adapters and versions: resolve, list, limit and quarantine. Publishing and deletion are separate packages."""

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace

from adapters.geometry import HEAD_MODULE
from adapters.identity import MAX_VERSION_NUMBER, ModelName
from adapters.modules import HEAD_SETTING
from app.database import adapters, audit, versions
from app.database.resolution import Candidate, alias_names
from app.database.session import Database
from app.domain.adapters import Adapter, ResolvedVersion, Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.errors import AdapterNotReady, AdapterQuarantined, AdapterRetired, NotFound, TenoraError, WrongBase
from app.domain.filters import ANY, VersionFilter
from app.domain.pages import Page
from app.domain.searches import EVERYTHING, Search
from app.domain.traffic_split import choose, sticky_point
from app.services.catalog.resolutions import Resolutions
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    checked_search,
    page_of,
    patched_limits,
    read_cursor,
    read_position,
)

_NUMBER = re.compile("[1-9][0-9]{0,9}", re.ASCII)
_MAX_REASON = 500
#: Refusal of a version of the head. It was published where the setting was on.
NO_HEAD = (
    f"The version {{}} adapts {HEAD_MODULE}, which this server does not serve. "
    f"Ask the platform team to set {HEAD_SETTING}."
)


class AdapterService:
    """Adapter service. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id, ``cli`` or ``engine``.

    Args:
        base_name, base_digest: name and digest of this server's base.
        lora_head: whether this server serves adapters of the head.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        *,
        base_name: str,
        base_digest: str,
        lora_head: bool = False,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._clock = database, clock
        self._resolutions = Resolutions(database, monotonic=monotonic)
        self._base_name, self._base_digest, self._head = base_name, base_digest, lora_head

    async def resolve(self, tenant_id: int, name: ModelName, user: str | None = None) -> ResolvedVersion:
        """Resolve a model name to the version that serves this request.

        An alias that splits its traffic selects among the versions that can be served. The same ``user`` always gets
        the same version. See :mod:`app.domain.traffic_split`.

        Raises:
            NotFound: the name is unknown, or another tenant's. Both cases run the same query and give the same answer.
            AdapterQuarantined, AdapterRetired, AdapterNotReady, WrongBase: none of the name's versions can be served.
        """
        candidates = await self._resolutions.find(tenant_id, name)
        if not candidates:
            raise NotFound(f"There is no model {str(name)!r}.", param="model")
        refusals = [self._refusal(candidate) for candidate in candidates]
        servable = [candidate for candidate, refusal in zip(candidates, refusals, strict=True) if refusal is None]
        if not servable:
            raise next(refusal for refusal in refusals if refusal is not None)
        if len(servable) == 1:
            return servable[0].version
        point = _point(servable[0].version, user)
        return choose([(candidate.version, candidate.weight) for candidate in servable], point)

    async def alias_names(self, tenant_id: int, adapter: str, *, limit: int) -> list[str]:
        """Return the first aliases of the tenant's adapter, by name; empty if the tenant has no such adapter."""
        return await self._database.lookup(lambda connection: alias_names(connection, tenant_id, adapter, limit))

    def _refusal(self, candidate: Candidate) -> TenoraError | None:
        """Return the error for a version that cannot be served here, or None if it can."""
        version = candidate.version
        name = f"{version.adapter}@{version.number}"
        match candidate.state:
            case VersionState.QUARANTINED:
                message = f"The version {name} failed to load and is quarantined. Ask the platform team to restore it."
                return AdapterQuarantined(message, param="model")
            case VersionState.RETIRED:
                return AdapterRetired(_with_reason(f"The version {name} was retired", candidate), param="model")
            case VersionState.VALIDATING:
                message = f"The version {name} is still being validated. Try again later."
                return AdapterNotReady(message, param="model", retry_after=1)
            case VersionState.REJECTED:
                return AdapterNotReady(_with_reason(f"The version {name} was rejected", candidate), param="model")
        if candidate.base_digest not in (None, self._base_digest):
            return WrongBase(
                f"The version {name} was validated against the base {candidate.base_name!r} "
                f"({str(candidate.base_digest)[:12]}), but this server serves {self._base_name!r} "
                f"({self._base_digest[:12]}). Use a version for this base.",
                param="model",
            )
        if candidate.lora_head and not self._head:
            return AdapterNotReady(NO_HEAD.format(name), param="model")
        return None

    async def list_adapters(
        self,
        tenant: str,
        *,
        only: VersionFilter = ANY,
        search: Search = EVERYTHING,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[Adapter]:
        """List a tenant's adapters with at least one matching version, the oldest first unless the search sorts them.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        after = read_position(cursor, checked_search(search))
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            rows = await adapters.list_adapters(
                connection, owner, after=after, limit=limit + 1, only=only, search=search
            )
        return page_of(rows, limit, lambda adapter: adapter.name if search.sort.by_name else adapter.id)

    async def get_adapter(self, tenant: str, adapter: str) -> Adapter:
        """Return one adapter with the numbers of its versions.

        Raises:
            NotFound
        """
        async with self._database.read() as connection:
            return await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)

    async def limit(self, tenant: str, adapter: str, limits: object, *, actor: str) -> Adapter:
        """Update an adapter's limits. All its callers share them, including tenants it is shared with.

        Args:
            limits: JSON merge patch, see :func:`app.services.common.validation.patched_limits`.

        Raises:
            NotFound, InvalidRequest
        """
        async with self._database.write() as connection:
            old = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            new = replace(old, limits=patched_limits(old.limits, limits))
            if new != old:
                await adapters.set_limits(connection, old.id, new.limits)
                await audit.record(
                    connection,
                    at=self._clock(),
                    actor=actor,
                    action="adapter.limit",
                    tenant=tenant,
                    subject=adapter,
                    before={"limits": old.limits.as_json},
                    after={"limits": new.limits.as_json},
                )
        return new

    async def list_versions(
        self,
        tenant: str,
        adapter: str,
        *,
        only: VersionFilter = ANY,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[Version]:
        """List an adapter's matching versions, the newest first.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        below = int(read_cursor(cursor, _NUMBER) or MAX_VERSION_NUMBER)
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            rows = await versions.list_versions(connection, adapter_row.id, below=below, limit=limit + 1, only=only)
        return page_of(rows, limit, lambda version: version.number)

    async def get_version(self, tenant: str, adapter: str, number: int) -> Version:
        """Return one version that is not deleted.

        Raises:
            NotFound
        """
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            return await version_or_404(connection, adapter_row, number)

    async def quarantine(self, version_id: int, reason: str, *, actor: str = "engine") -> bool:
        """Quarantine a version that failed to load. Returns False if it was no longer ready."""
        # PostgreSQL refuses NUL in text, and the reason quotes the engine's output.
        reason = reason.replace("\0", "")[:_MAX_REASON]
        async with self._database.write() as connection:
            names = await versions.quarantine_version(connection, version_id, reason)
            if names is None:
                return False
            tenant, adapter, number = names
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


def _with_reason(event: str, candidate: Candidate) -> str:
    """Append the reason of the version's state, which may be free text, and end the sentence."""
    return f"{event}: {candidate.state_reason.rstrip('.')}." if candidate.state_reason else f"{event}."


def _point(version: ResolvedVersion, user: str | None) -> float:
    """Return the request's point on the line of weights: the user's own one, or a random one."""
    if user is None:
        return random.random()  # noqa: S311 - spreads load, keeps no secret
    return sticky_point(_identity(version), user)


def _identity(version: ResolvedVersion) -> str:
    return f"{version.owner}/{version.adapter}:{version.alias}"
