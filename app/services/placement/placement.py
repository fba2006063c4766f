"""What this server's engine holds besides what requests ask for: the registry's pins, and the preload list."""

import asyncio
import logging
from collections.abc import Awaitable

from adapters.errors import InvalidName, StorageError
from adapters.identity import parse_model_name
from app.database import pins as pins_repo
from app.database.cached_query import CachedQuery
from app.database.resolution import Candidate, resolve
from app.database.session import Database
from app.domain.adapters import VersionState
from app.domain.errors import AdapterLoadFailed, Conflict, EngineUnavailable, NotFound, RegistryUnavailable
from app.domain.pins import Pin, Placement, Preload
from app.engine.port import Engine
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups
from app.services.common.lookups import tenant_or_404
from app.services.placement.pins import PinService

logger = logging.getLogger(__name__)

EVERY_S = 1.0


class PlacementService:
    """Keeps one engine at what it is told to hold.

    Args:
        readers: who is on the way to the engine in this process, so that no deletion overlooks what is loaded here.
        preload: the setting: ``tenant/adapter``, each with ``:alias`` or ``@number`` if not the default.
        slots: the engine's ``max_loras``.
    """

    def __init__(
        self,
        database: Database,
        engine: Engine,
        adapters: AdapterService,
        pins: PinService,
        readers: InFlightLookups,
        *,
        preload: tuple[str, ...],
        slots: int,
        base_digest: str,
        lora_head: bool = False,
    ) -> None:
        self._database, self._engine, self._adapters, self._pins = database, engine, adapters, pins
        self._readers = readers
        self._pinned = CachedQuery(
            database, lambda connection: pins_repo.list_pins(connection, base_digest, head=lora_head)
        )
        self._wanted, self._slots, self._base_digest = preload, slots, base_digest
        self._head = lora_head
        self._preloads: list[Preload] = []
        #: What each pin's last try said, so that it is logged once and not every second.
        self._problems: dict[int, str] = {}
        self._following = asyncio.Lock()

    async def prepare(self) -> None:
        """Load pins and the preload list, before the server says that it is ready. What fails is logged and shown."""
        try:
            await self.follow()
        except RegistryUnavailable:
            logger.warning("the pins could not be read; they are tried again")
        self._preloads = [await self._preload(name) for name in self._wanted]

    async def follow(self) -> None:
        """Pin and unpin until the engine holds what the registry says.

        Raises:
            RegistryUnavailable
        """
        async with self._following:
            wanted = {pin.key.version_id: pin for pin in await self._pinned()}
            for version_id in self._engine.pinned - wanted.keys():
                await self._engine.unpin(version_id)
            self._problems = {version_id: why for version_id, why in self._problems.items() if version_id in wanted}
            for version_id, pin in wanted.items():
                if version_id not in self._engine.pinned:
                    await self._pin(pin)

    async def shown(self) -> Placement:
        """Pins and preloads, as this server has them.

        Raises:
            RegistryUnavailable
        """
        return Placement(self._slots, await self._pins.list_pins(), tuple(self._preloads))

    async def _pin(self, pin: Pin) -> None:
        version_id, name = pin.key.version_id, f"{pin.tenant}/{pin.adapter}@{pin.number}"
        with self._readers.reading() as reader:
            reader.found(version_id)
            async with self._database.read() as connection:
                # Whoever deletes the version from here on waits until it is loaded, and takes it out.
                if await pins_repo.find_pin(connection, version_id) is None:
                    return
            problem = await self._placed(self._engine.pin(pin.key))
        if problem is None:
            self._problems.pop(version_id, None)
        elif self._problems.get(version_id) != problem:
            self._problems[version_id] = problem
            logger.warning("the pinned version %s is not in the engine: %s", name, problem)

    async def _preload(self, name: str) -> Preload:
        versions, problem = [], None
        with self._readers.reading():
            try:
                found = await self._meant(name)
            except (NotFound, RegistryUnavailable) as error:
                found, problem = [], error.message
            for candidate in found:
                version = candidate.version
                versions.append(f"{version.owner}/{version.adapter}@{version.number}")
                problem = await self._placed(self._engine.preload(version.key)) or problem
        if problem is not None:
            logger.warning("TENORA_PRELOAD: %s: %s", name, problem)
        return Preload(name, tuple(versions), problem)

    async def _meant(self, name: str) -> list[Candidate]:
        """The versions that an entry of the preload list means now: several, where its alias splits the traffic.

        Raises:
            NotFound: none that can be served; RegistryUnavailable
        """
        tenant, _, model = name.partition("/")
        try:
            parsed = parse_model_name(model)
        except InvalidName:
            raise NotFound("found no model's name, allowed tenant/adapter, with :alias or @number") from None
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
        found = await self._database.lookup(lambda connection: resolve(connection, owner.id, parsed))
        bases = (None, self._base_digest)
        found = [one for one in found if one.state is VersionState.READY and one.base_digest in bases]
        found = [one for one in found if self._head or not one.lora_head]
        if not found:
            raise NotFound("there is no such version that is ready")
        return found

    async def _placed(self, call: Awaitable[None]) -> str | None:
        """Make a call that loads a version; returns what went wrong, in words."""
        try:
            await call
        except AdapterLoadFailed as error:
            await self._adapters.quarantine(error.version_id, error.message)
            return error.message
        except (Conflict, EngineUnavailable, StorageError) as error:
            return str(error)
        return None
