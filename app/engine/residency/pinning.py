"""Pinned versions, and the desired adapters of every engine session."""

import logging
from typing import Protocol

from adapters.errors import StorageError
from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, Conflict, EngineUnavailable
from app.engine.residency.adapter_loader import AdapterLoader, LoadedLease

logger = logging.getLogger(__name__)


class Pins:
    """Pinned versions of one engine session.

    A pin is a lease that is kept. The version is never evicted, and no other version gets its slot.

    Args:
        slots: number of the engine's slots. At least one is never pinned.
    """

    def __init__(self, loader: AdapterLoader, *, slots: int) -> None:
        self._loader, self._slots = loader, slots
        #: Pins by version id.
        self._pins: dict[int, _Pin] = {}

    @property
    def versions(self) -> frozenset[int]:
        """Versions that hold a pinned slot now."""
        return frozenset(version_id for version_id, pin in self._pins.items() if pin.lease is not None)

    async def pin(self, key: VersionKey) -> None:
        """Load a version and keep it in its slot. Return at once if it is pinned already.

        Raises:
            Conflict: no slot would be left for other versions.
            AdapterLoadFailed, EngineUnavailable
            adapters.errors.StorageError: the version's bytes are not available.
        """
        version_id = key.version_id
        if version_id in self._pins:
            return
        if len(self._pins) + 1 >= self._slots:
            raise Conflict(
                f"{len(self._pins) + 1} of {self._slots} slots would be pinned; the limit is {self._slots - 1}. "
                "One slot must stay free for all other adapters."
            )
        pin = self._pins[version_id] = _Pin()
        try:
            pin.lease = await self._loader.lease(self._loader.internal_request("pin", key), key)
            self._loader.keep_slot(version_id)
        except BaseException:
            self._give_up(version_id, pin)
            raise
        if self._pins.get(version_id) is not pin:
            # Unpinned during the load.
            self._give_up(version_id, pin)

    def unpin(self, version_id: int) -> None:
        """Release a pin. A version that is not pinned is ignored."""
        pin = self._pins.pop(version_id, None)
        if pin is not None and pin.lease is not None:
            self._give_up(version_id, pin)

    def _give_up(self, version_id: int, pin: "_Pin") -> None:
        if self._pins.get(version_id) is pin:
            del self._pins[version_id]
        if version_id not in self._pins:
            self._loader.share_slot(version_id)
        if pin.lease is not None:
            pin.lease.release()


class _Pin:
    """Pin of one version. Its lease is None during the load."""

    lease: LoadedLease | None = None


class DesiredAdapters:
    """Desired adapters of every engine session by version id: pinned, or preloaded at its start."""

    def __init__(self) -> None:
        self.pins: dict[int, VersionKey] = {}
        self.preloads: dict[int, VersionKey] = {}

    def forget(self, version_id: int) -> None:
        self.pins.pop(version_id, None)
        self.preloads.pop(version_id, None)

    async def establish(self, loader: AdapterLoader, pins: Pins) -> None:
        """Load the desired adapters into a new session. A version that fails is logged and no longer desired."""
        try:
            for key in list(self.pins.values()):
                if key.version_id in self.pins and not await self._try(pins.pin, key):
                    self.pins.pop(key.version_id, None)
            for key in list(self.preloads.values()):
                if key.version_id in self.preloads and not await self._try(loader.load, key):
                    self.preloads.pop(key.version_id, None)
        except EngineUnavailable:
            logger.warning("The engine died before it had all pinned and preloaded versions. The next one loads them.")

    async def _try(self, hold: "_Hold", key: VersionKey) -> bool:
        try:
            await hold(key)
        except (AdapterLoadFailed, Conflict, StorageError) as error:
            logger.warning("Version %s is not in the new engine: %s", key.lora_name, error)
            return False
        return True


class _Hold(Protocol):
    async def __call__(self, key: VersionKey) -> None: ...
