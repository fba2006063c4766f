"""Prefetcher: stage versions that are likely to be requested next while there is room.

A prefetch never evicts a version. The engine guarantees that, see ``Residency.prefetch``. For the design see
docs/decisions/0027-prefetching.md.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from adapters.errors import StorageError
from adapters.identity import VersionKey
from app.database import prefetching
from app.database.session import Database
from app.engine.port import EngineEvent, Residency, Status
from app.engine.status import EngineState
from app.services.common.in_flight import InFlightLookups
from app.services.placement.prefetch.candidates import Candidates
from app.services.placement.prefetch.working_set import WorkingSet, WorkingSetFile

logger = logging.getLogger(__name__)

#: Seconds between two staging rounds, two reads of alias moves, and two writes of the working set.
EVERY_S = 0.25
_ALIASES_EVERY_S = 1.0
_SAVE_EVERY_S = 30.0
_PAGE = 200


class _Engine(Residency, Status, Protocol):
    """Part of the engine that the prefetcher uses."""


class Prefetcher:
    """Prefetcher of one server. It belongs to the server's event loop.

    Args:
        in_flight: in-flight look-ups of this process; a deletion waits for those that may load its version.
        path: file that keeps the working set.
        base_digest: digest of this server's base.
        lora_head: whether this server serves adapters of ``lm_head``.
    """

    def __init__(
        self,
        database: Database,
        engine: _Engine,
        in_flight: InFlightLookups,
        path: Path,
        *,
        base_digest: str,
        lora_head: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._engine, self._in_flight = database, engine, in_flight
        self._head = lora_head
        self._file, self._base_digest, self._monotonic = WorkingSetFile(path), base_digest, monotonic
        self._candidates, self._working_set = Candidates(), WorkingSet()
        self._changed, self._saving = False, asyncio.Lock()
        self._revision: int | None = None
        self._aliases_at, self._saved_at = -math.inf, monotonic()
        self._restarts = 0
        engine.subscribe(self._on_event)

    def seen(self, key: VersionKey, tenant: str) -> None:
        """Record that a request of the tenant (slug) resolved to this version. Cheap, and never raises."""
        self._candidates.seen(tenant, key.version_id, self._monotonic())
        self._working_set.seen(key, tenant)
        self._changed = True

    async def prepare(self) -> None:
        """Read the working set of the last run. Later rounds stage those versions that can still be served.

        Raises:
            RegistryUnavailable
            StoreUnavailable: the file can be neither written nor removed.
        """
        before = await asyncio.to_thread(self._file.read)
        async with self._database.read() as connection:
            keys = await prefetching.ready_keys(
                connection, [used.id for used in before], self._base_digest, head=self._head
            )
        for used in reversed(before):
            if used.id in keys and keys[used.id].digest == used.digest:
                self._working_set.seen(keys[used.id], "")
        self._candidates.begin_again(self._working_set.ids)
        if self._working_set.used != before:
            # Versions that were deleted while the server was down must not stay in the file.
            self._changed = True
            await self._save_surely()

    async def advance(self) -> None:
        """Stage candidates while there is room, and write the working set periodically.

        Raises:
            RegistryUnavailable
            DiskFull, StoreUnavailable: the working set cannot be written.
        """
        now = self._monotonic()
        if now - self._saved_at >= _SAVE_EVERY_S:
            self._saved_at = now
            await self.save()
        if now - self._aliases_at >= _ALIASES_EVERY_S:
            self._aliases_at = now
            await self._follow_aliases()
        status = self._engine.status()
        if status.state is not EngineState.READY:
            return
        if status.restarts != self._restarts:
            self._restarts = status.restarts
            self._candidates.begin_again(self._working_set.ids)
        if self._candidates:
            await self._stage(now)

    async def save(self) -> None:
        """Write the working set if it has changed.

        Raises:
            DiskFull, StoreUnavailable: the file keeps its old content.
        """
        async with self._saving:
            if self._changed:
                self._changed = False
                try:
                    await asyncio.to_thread(self._file.write, self._working_set.used)
                except BaseException:
                    self._changed = True
                    raise

    async def close(self) -> None:
        """Try to write the working set for the next start. A failure is logged."""
        try:
            await self.save()
        except StorageError as error:
            logger.warning("The working set could not be saved for the next start: %s", error)

    async def forget(self, version_ids: Collection[int]) -> None:
        """Remove every trace of deleted versions, in memory and in the file.

        Raises:
            StoreUnavailable: the file can be neither written nor removed.
        """
        self._candidates.forget(version_ids)
        if self._working_set.forget(version_ids):
            self._changed = True
        await self._save_surely()

    async def _save_surely(self) -> None:
        try:
            await self.save()
        except StorageError:
            # An old file would still list deleted versions.
            await asyncio.to_thread(self._file.remove)

    async def _follow_aliases(self) -> None:
        """Queue the targets of aliases that any node has moved since the last call.

        A change that commits after one with a higher revision is missed. Its version is then cold at its first request.
        """
        async with self._database.read() as connection:
            if self._revision is None:
                self._revision = await prefetching.newest_revision(connection)
            moves = await prefetching.moves_after(connection, self._revision, limit=_PAGE)
        for move in moves:
            self._revision = move.revision
            if move.version_id is not None:
                self._candidates.moved(move.version_id, move.tenant_id)

    async def _stage(self, now: float) -> None:
        report = self._engine.report()
        room = report.status.host_bytes - report.status.host_used_bytes
        if room <= 0:
            self._candidates.no_room()
            return
        present = {version.version_id for version in report.versions if version.tier != "disk"}
        version_ids = self._candidates.take(now, present)
        if not version_ids:
            return
        # A deletion that starts after this point waits until the engine knows the version, and then unloads it.
        with self._in_flight.lookup():
            async with self._database.read() as connection:
                keys = await prefetching.ready_keys(connection, version_ids, self._base_digest, head=self._head)
            for key in [keys[version_id] for version_id in version_ids if version_id in keys]:
                if key.size > room:
                    self._candidates.no_room()
                    return
                room -= key.size
                self._engine.prefetch(key)

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind in ("evict", "unload"):
            self._candidates.look_again(event.version_id)
