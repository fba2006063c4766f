"""Engine reconciler: keep one engine in line with the registry's pins and the preload list."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Protocol

from adapters.errors import InvalidName, StorageError
from adapters.identity import parse_model_name
from app.database import pins as pins_repo
from app.database.resolution import Candidate, resolve
from app.database.session import Database
from app.domain.adapters import VersionState
from app.domain.errors import AdapterLoadFailed, Conflict, EngineUnavailable, NotFound, RegistryUnavailable
from app.domain.pins import Pin, Preload
from app.engine.port import Residency, Status
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups
from app.services.common.lookups import tenant_or_404
from app.services.placement.fleet_pins import FleetPins

logger = logging.getLogger(__name__)

EVERY_S = 1.0


class _Engine(Residency, Status, Protocol):
    """Part of the engine that this service uses."""


class PlacementService:
    """Loads the pins and the preload list into this server's engine.

    Args:
        in_flight: in-flight look-ups of this process, so that a deletion sees versions that are being loaded here.
        preload: the setting: ``tenant/adapter``, each with ``:alias`` or ``@number`` if not the default.
        fleet_pins: chooses the pins of an engine replica; None for a server, which pins all.

    Attributes:
        preloads: the preload list as it was loaded at the start.
    """

    def __init__(
        self,
        database: Database,
        engine: _Engine,
        adapters: AdapterService,
        in_flight: InFlightLookups,
        *,
        preload: tuple[str, ...],
        base_digest: str,
        lora_head: bool = False,
        fleet_pins: FleetPins | None = None,
    ) -> None:
        self._database, self._engine, self._adapters, self._in_flight = database, engine, adapters, in_flight
        self._fleet_pins = fleet_pins
        self._preload_names, self._base_digest, self._head = preload, base_digest, lora_head
        self.preloads: tuple[Preload, ...] = ()
        #: Version id -> last error of its pin, so that a repeated error is logged once.
        self._problems: dict[int, str] = {}
        self._following = asyncio.Lock()

    async def prepare(self) -> None:
        """Load the pins and the preload list before the server reports ready.

        A version that fails to load does not stop the start. The failure is logged, and ``preloads`` has it.
        """
        try:
            await self.follow()
        except RegistryUnavailable:
            logger.warning("The pins could not be read. They are tried again.")
        self.preloads = tuple([await self._preload(name) for name in self._preload_names])

    async def follow(self) -> None:
        """Reconcile: pin and unpin until the engine matches the registry.

        Raises:
            RegistryUnavailable
        """
        async with self._following:
            async with self._database.read() as connection:
                listed = await pins_repo.list_pins(connection, self._base_digest, head=self._head)
                pins: Mapping[int, Pin] = {pin.key.version_id: pin for pin in listed}
                if self._fleet_pins is not None:
                    pins = await self._fleet_pins.own(connection, pins)
            pinned = self._engine.status().pinned
            for version_id in pinned - pins.keys():
                await self._engine.unpin(version_id)
            self._problems = {key: problem for key, problem in self._problems.items() if key in pins}
            for version_id, pin in pins.items():
                if version_id not in pinned:
                    await self._pin(pin)

    async def _pin(self, pin: Pin) -> None:
        version_id, name = pin.key.version_id, f"{pin.tenant}/{pin.adapter}@{pin.number}"
        with self._in_flight.lookup() as lookup:
            lookup.resolved(version_id)
            async with self._database.read() as connection:
                # A deletion that starts after this point waits until the version is loaded, and then unloads it.
                if await pins_repo.find_pin(connection, version_id) is None:
                    return
            problem = await self._placed(self._engine.pin(pin.key))
        if problem is None:
            self._problems.pop(version_id, None)
        elif self._problems.get(version_id) != problem:
            self._problems[version_id] = problem
            logger.warning("The pinned version %s is not in the engine: %s", name, problem)

    async def _preload(self, name: str) -> Preload:
        versions, problem = [], None
        with self._in_flight.lookup():
            try:
                candidates = await self._resolve(name)
            except (NotFound, RegistryUnavailable) as error:
                candidates, problem = [], error.message
            for candidate in candidates:
                version = candidate.version
                versions.append(f"{version.owner}/{version.adapter}@{version.number}")
                problem = await self._placed(self._engine.preload(version.key)) or problem
        if problem is not None:
            logger.warning("TENORA_PRELOAD names %s, which could not be loaded: %s", name, problem)
        return Preload(name, tuple(versions), problem)

    async def _resolve(self, name: str) -> list[Candidate]:
        """Resolve an entry of the preload list. An alias that splits its traffic gives several versions.

        Raises:
            NotFound: no version that can be served.
            RegistryUnavailable
        """
        tenant, _, model = name.partition("/")
        try:
            parsed = parse_model_name(model)
        except InvalidName:
            raise NotFound("The name is invalid. Write tenant/adapter, with :alias or @number if needed.") from None
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
        candidates = await self._database.lookup(lambda connection: resolve(connection, owner.id, parsed))
        bases = (None, self._base_digest)
        servable = [
            candidate
            for candidate in candidates
            if candidate.state is VersionState.READY
            and candidate.base_digest in bases
            and (self._head or not candidate.lora_head)
        ]
        if not servable:
            raise NotFound("No version with this name is ready and can be served here.")
        return servable

    async def _placed(self, call: Awaitable[None]) -> str | None:
        """Await a call that loads a version. Return its error message, or None."""
        try:
            await call
        except AdapterLoadFailed as error:
            await self._adapters.quarantine(error.version_id, error.message)
            return error.message
        except (Conflict, EngineUnavailable, StorageError) as error:
            return str(error)
        return None
