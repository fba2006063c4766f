"""Retirement: take a version out of service without deleting it, and restore it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import AdapterRejected
from adapters.identity import DEFAULT_ALIAS
from app.database import adapters, audit
from app.database.aliases import last_ready_target
from app.database.session import Database
from app.database.version_references import change_state
from app.domain.adapters import Adapter, Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, Forbidden, InvalidRequest
from app.engine.port import Residency
from app.services.common.in_flight import InFlightLookups
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.deletion.detach import Change, Leaving, check_free, release
from app.services.publishing.smoke_tests import refusals

_MAX_REASON = 500
_WHOLE = 100


class RetirementService:
    """Retirement service. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id or ``cli``.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(
        self, database: Database, engine: Residency, in_flight: InFlightLookups, *, clock: Clock = utc_now
    ) -> None:
        self._database, self._engine, self._in_flight, self._clock = database, engine, in_flight, clock

    async def retire(self, tenant: str, adapter: str, number: int, *, reason: str, force: bool, actor: str) -> Version:
        """Retire a version: it gets no new requests, running ones finish, and its bytes stay.

        Args:
            reason: text that callers of the version see.

        Raises:
            InvalidRequest, NotFound
            Conflict: the version is not ready; or an alias, a canary or a pin holds it, and ``force`` is false.
        """
        reason = _checked_reason(reason)
        async with self._database.write() as connection:
            adapter_row, version = await _find(connection, tenant, adapter, number)
            leaving = Leaving(adapter_row, {number: version.key.version_id}, f"{adapter_row.name}@{number}")
            if not force:
                await check_free(connection, leaving)
            change = _Change(tenant, version, VersionState.READY, VersionState.RETIRED, actor, self._clock())
            await change.apply(connection, reason)
            aliases = await release(connection, leaving, Change(change.at, actor, f"{leaving.name} was retired."))
            await change.record(connection, {"reason": reason, "aliases": aliases})
            return await version_or_404(connection, adapter_row, number)

    async def restore(self, tenant: str, adapter: str, number: int, *, admin: bool, actor: str) -> Version:
        """Restore a retired version, or a quarantined one that passes a new smoke check.

        Args:
            admin: whether the request uses a platform key; only that may restore a quarantined version.

        Raises:
            NotFound, Conflict, Forbidden
            AdapterRejected, AdapterLoadFailed: the version failed again, and stays quarantined.
            EngineUnavailable
            adapters.errors.StorageError: the version's bytes are not available.
        """
        async with self._database.read() as connection:
            _, version = await _find(connection, tenant, adapter, number, lock=False)
        if version.state is VersionState.QUARANTINED:
            if not admin:
                raise Forbidden(f"{version.adapter}@{number} is quarantined. Only a platform key can restore it.")
            await self._smoke(version)
        before = version.state if version.state is VersionState.QUARANTINED else VersionState.RETIRED
        async with self._database.write() as connection:
            adapter_row, version = await _find(connection, tenant, adapter, number)
            change = _Change(tenant, version, before, VersionState.READY, actor, self._clock())
            await change.apply(connection, None)
            await change.record(connection, {})
            last = await last_ready_target(connection, adapter_row.id, DEFAULT_ALIAS)
            if DEFAULT_ALIAS not in adapter_row.aliases and last is not None and last[1] == number:
                # Restore the alias that retiring this version removed.
                targets, reason = {version.key.version_id: _WHOLE}, f"{version.adapter}@{number} was restored."
                await adapters.set_targets(
                    connection,
                    adapter_row.id,
                    DEFAULT_ALIAS,
                    targets,
                    at=change.at,
                    actor=actor,
                    action="move",
                    reason=reason,
                )
            return await version_or_404(connection, adapter_row, number)

    async def _smoke(self, version: Version) -> None:
        with self._in_flight.lookup() as lookup:
            lookup.resolved(version.key.version_id)
            reasons = refusals(await self._engine.smoke(version.key), version)
        if reasons:
            raise AdapterRejected(reasons)


@dataclass(frozen=True, slots=True)
class _Change:
    """A version's change of state."""

    tenant: str
    version: Version
    before: VersionState
    after: VersionState
    actor: str
    at: datetime

    @property
    def name(self) -> str:
        return f"{self.version.adapter}@{self.version.number}"

    async def apply(self, connection: AsyncConnection, reason: str | None) -> None:
        states = {"before": self.before.value, "after": self.after.value}
        if not await change_state(connection, self.version.key.version_id, states, reason=reason):
            message = f"{self.name} is {self.version.state.value}, but must be {self.before.value}."
            raise Conflict(message, param="version")

    async def record(self, connection: AsyncConnection, more: Mapping[str, object]) -> None:
        await audit.record(
            connection,
            at=self.at,
            actor=self.actor,
            action="version.retire" if self.after is VersionState.RETIRED else "version.restore",
            tenant=self.tenant,
            subject=self.name,
            before={"state": self.before.value},
            after={"state": self.after.value, **more},
        )


async def _find(
    connection: AsyncConnection, tenant: str, adapter: str, number: int, *, lock: bool = True
) -> tuple[Adapter, Version]:
    owner = await tenant_or_404(connection, tenant, lock=lock)
    adapter_row = await adapter_or_404(connection, owner, adapter)
    return adapter_row, await version_or_404(connection, adapter_row, number)


def _checked_reason(reason: str) -> str:
    if not 1 <= len(reason) <= _MAX_REASON or not reason.isprintable():
        raise InvalidRequest(
            f"reason is {reason[:80]!r}, but must have 1 to {_MAX_REASON} printable characters.", param="reason"
        )
    return reason
