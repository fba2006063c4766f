"""Pin service: reserve an engine slot for a version, on every server of its base.

The registry stores the pins, and :mod:`app.services.placement.placement` reconciles each server's engine with them.
A pinned slot is lost to all other versions. A tenant's own keys may therefore pin only within the tenant's quota of
pinned slots, and at least one slot always stays unpinned.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.geometry import HEAD_MODULE
from app.database import audit, pins, quotas
from app.database.session import Database
from app.domain.access import Tenant
from app.domain.adapters import Version, VersionState
from app.domain.clock import Clock, utc_now
from app.domain.errors import AdapterNotReady, Conflict, Forbidden, NotFound, WrongBase
from app.domain.pins import Pin, Placement, Preload
from app.domain.quotas import Usage
from app.engine.port import Status
from app.services.catalog.adapters import NO_HEAD
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.common.quotas import check_quota
from app.services.placement.fleet_pins import FleetRoom


class PinService:
    """Use cases of pins. ``tenant`` and ``adapter`` are slugs, and ``actor`` is a key's id.

    Every method can raise RegistryUnavailable.

    Args:
        preloads: returns the preload list as the engine's node loaded it.
        base_digest: digest of this server's base.
        lora_head: whether this server serves adapters of ``lm_head``.
        fleet: engine replicas; None for an engine in this process.
    """

    def __init__(
        self,
        database: Database,
        engine: Status,
        preloads: Callable[[], Sequence[Preload]],
        *,
        base_digest: str,
        lora_head: bool = False,
        fleet: FleetRoom | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self._fleet = fleet
        self._database, self._engine, self._preloads, self._clock = database, engine, preloads, clock
        self._base_digest, self._head = base_digest, lora_head

    async def pin(self, tenant: str, adapter: str, number: int, *, actor: str, admin: bool) -> tuple[Pin, bool]:
        """Pin a ready version. Return the pin and whether it is new.

        Engines load it within a second or so. Until then its requests are served as before.

        Args:
            admin: whether the caller has a platform key.

        Raises:
            NotFound
            Forbidden: the tenant's own keys may not pin.
            QuotaExceeded: the tenant's quota of pinned slots is used up.
            Conflict: no slot would be left for other adapters.
            AdapterNotReady, WrongBase: the version cannot be served here.
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            version = await version_or_404(connection, await adapter_or_404(connection, owner, adapter), number)
            _check_right(owner, admin=admin)
            self._check_servable(version)
            version_id = version.key.version_id
            if pin := await pins.find_pin(connection, version_id):
                return self._shown(pin), False
            await self._check_room(connection, owner)
            now = self._clock()
            await pins.insert_pin(connection, version_id, at=now, actor=actor)
            await audit.record(
                connection, at=now, actor=actor, action="version.pin", tenant=tenant, subject=f"{adapter}@{number}"
            )
            pin = Pin(version.key, tenant, adapter, number, now, actor)
        return self._shown(pin), True

    async def unpin(self, tenant: str, adapter: str, number: int, *, actor: str, admin: bool) -> None:
        """Unpin a version, so that it shares the unpinned slots again.

        Raises:
            NotFound: also if the version is not pinned.
            Forbidden
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            version = await version_or_404(connection, await adapter_or_404(connection, owner, adapter), number)
            _check_right(owner, admin=admin)
            if not await pins.remove_pin(connection, version.key.version_id):
                raise NotFound(f"The version {adapter}@{number} is not pinned.", param="version")
            await audit.record(
                connection,
                at=self._clock(),
                actor=actor,
                action="version.unpin",
                tenant=tenant,
                subject=f"{adapter}@{number}",
            )

    async def list_pins(self) -> list[Pin]:
        """List the pins of all tenants, oldest first. There are always fewer pins than slots."""
        async with self._database.read() as connection:
            listed = await pins.list_pins(connection, self._base_digest, head=self._head)
        held = self._held()
        return [replace(pin, held=pin.key.version_id in held) for pin in listed]

    async def placement(self) -> Placement:
        """Return the pins of all tenants and the preloads, with their state in this server's engine."""
        return Placement(self._engine.status().slots, await self.list_pins(), tuple(self._preloads()))

    def _check_servable(self, version: Version) -> None:
        name = f"{version.adapter}@{version.number}"
        if version.state is not VersionState.READY:
            raise AdapterNotReady(f"The version {name} is {version.state.value}, but must be ready.", param="version")
        if version.provenance.base_digest not in (None, self._base_digest):
            raise WrongBase(
                f"The version {name} was validated against the base {version.provenance.base_name!r}, "
                "which this server does not serve. Pin a version for this base.",
                param="version",
            )
        if not self._head and HEAD_MODULE in (version.provenance.target_modules or ()):
            raise AdapterNotReady(NO_HEAD.format(name), param="version")

    async def _check_room(self, connection: AsyncConnection, owner: Tenant) -> None:
        check_quota(owner.quota, await quotas.usage(connection, owner.id), Usage(pinned_slots=1))
        await pins.lock_pins(connection)
        pinned = len(await pins.list_pins(connection, self._base_digest, head=self._head))
        slots = self._engine.status().slots
        if self._fleet is not None and pinned + 1 > (limit := await self._fleet.pins(connection)):
            raise Conflict(
                f"{pinned} versions are pinned; the limit is {limit}. Each engine replica must keep one slot free for "
                "all other adapters. Unpin a version first, or add replicas."
            )
        if self._fleet is None and pinned + 1 >= slots:
            raise Conflict(
                f"{pinned} of {slots} slots are pinned; the limit is {slots - 1}. "
                "One slot must stay free for all other adapters. Unpin a version first."
            )

    def _shown(self, pin: Pin) -> Pin:
        return replace(pin, held=pin.key.version_id in self._held())

    def _held(self) -> frozenset[int]:
        # The report has the pins of the engine replicas. The status has what this process asks of them.
        return self._engine.report().status.pinned if self._fleet else self._engine.status().pinned


def _check_right(owner: Tenant, *, admin: bool) -> None:
    if not (admin or owner.quota.pinned_slots):
        raise Forbidden("The tenant has no quota of pinned slots. Ask the platform team for a quota.")
