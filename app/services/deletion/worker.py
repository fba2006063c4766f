"""Deletion worker: every node drops versions or a file, verifies and confirms that; one node finishes the deletion.

Each step is committed separately and is idempotent. After a crash at any point, this node or another one resumes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime

from adapters.cache import DiskCache
from adapters.errors import StorageError
from app.database import audit, deletions
from app.database.blobs import needed_contents
from app.database.nodes import list_nodes
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.deletions import Deletion, awaited, confirmed
from app.domain.errors import EngineUnavailable, RegistryUnavailable
from app.engine.port import Residency
from app.services.common.in_flight import Barrier, InFlightLookups
from app.services.publishing.blobs import BlobService

logger = logging.getLogger(__name__)

#: Seconds between two polls for unfinished deletions.
EVERY_S = 1.0
_ACTOR = "engine"

#: Removes every trace of versions, by their ids.
Forget = Callable[[Collection[int]], Awaitable[None]]

#: Removes the local copy of a file; False while it is used.
DropFile = Callable[[str], Awaitable[bool]]


async def _holds_no_files(_file_id: str) -> bool:
    return True


class DeletionWorker:
    """Deletion worker of this node.

    Args:
        node: id of this node, see :mod:`app.wiring.node`.
        in_flight: in-flight lookups of this process.
        drop_file: removes the local copy of a file.
        forget: callback with versions that no request can find any more, before they leave the engine.
        finishes: whether this node also removes blobs from the store and finishes deletions. Gateways do.

    Raises (``catch_up``, ``advance``, ``leave_engine``, ``leave_disk``, ``end``):
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        engine: Residency,
        cache: DiskCache,
        blobs: BlobService,
        in_flight: InFlightLookups,
        node: str,
        *,
        drop_file: DropFile = _holds_no_files,
        forget: Forget | None = None,
        finishes: bool = True,
        clock: Clock = utc_now,
    ) -> None:
        self._finishes = finishes
        self._database, self._engine, self._cache, self._blobs = database, engine, cache, blobs
        self._drop_file = drop_file
        self._in_flight, self._node, self._forget, self._clock = in_flight, node, forget, clock
        self._barriers: dict[str, Barrier] = {}
        self._troubles: dict[str, str] = {}
        self._passing = asyncio.Lock()
        self._woken: set[asyncio.Task[None]] = set()

    async def catch_up(self) -> None:
        """Remove versions from this node's disk that were deleted while it was down. Call it before serving."""
        async with self._database.read() as connection:
            needed = await needed_contents(connection)
        if swept := await self._cache.sweep(needed):
            logger.info("Removed %d unneeded versions from this node's disk.", len(swept))

    def wake(self) -> None:
        """Start a pass now instead of at the next poll, because a deletion was requested here."""
        task = asyncio.create_task(self.advance())
        self._woken.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop. The next pass of any node resumes unfinished deletions."""
        for task in self._woken:
            task.cancel()
        await asyncio.gather(*self._woken, return_exceptions=True)

    async def advance(self) -> None:
        """Advance every unfinished deletion as far as possible now."""
        async with self._passing:
            async with self._database.read() as connection:
                unfinished = await deletions.unfinished(connection)
                unfinished += await deletions.owed_by(connection, self._node)
            self._forget_others(unfinished)
            for deletion in unfinished:
                await self._try(deletion)

    async def leave_engine(self, deletion: Deletion) -> bool:
        """Drain the versions' requests, unload the versions from the engine, verify and confirm.

        Returns:
            Whether the engine has dropped all of them.

        Raises:
            EngineUnavailable
            StorageError: traces of the versions on this node's disk could not be removed.
        """
        barrier = self._barriers.get(deletion.id)
        if barrier is None:
            # New requests cannot find the versions any more, not even in a cache. Wait for the lookups in flight.
            self._database.invalidate()
            barrier = self._barriers[deletion.id] = self._in_flight.barrier(deletion.version_ids)
        if not barrier.passed:
            return False
        if self._forget:
            await self._forget(deletion.version_ids)
        held = False
        for version_id in sorted(deletion.version_ids):
            await self._engine.unload(version_id)
            held = await self._engine.holds(version_id) or held
        if held:
            return False
        async with self._database.write() as connection:
            await deletions.confirm(connection, deletion.id, self._node, engine_gone_at=self._clock())
        del self._barriers[deletion.id]
        return True

    async def leave_disk(self, deletion: Deletion) -> bool:
        """Remove the disk copies that no other version shares, verify and confirm. Returns whether that is done."""
        keys = [key for version in deletion.versions for key in version.keys]
        contents = {key.digest for key in keys}
        async with self._database.read() as connection:
            shared = await needed_contents(connection, contents)
        for key in keys:
            if key.digest not in shared:
                await self._cache.drop(key)
                if await self._cache.holds(key):
                    return False
        async with self._database.write() as connection:
            current = await deletions.find_deletion(connection, deletion.id, lock=True)
            if current is not None and shared:
                await deletions.mark_shared(connection, current, shared)
            await deletions.confirm(connection, deletion.id, self._node, disk_gone_at=self._clock())
        return True

    async def _leave_folder(self, deletion: Deletion, file_id: str) -> bool:
        """Remove the local copy of a file and confirm. Returns False while a request reads it."""
        if not await self._drop_file(file_id):
            return False
        now = self._clock()
        async with self._database.write() as connection:
            await deletions.confirm(connection, deletion.id, self._node, engine_gone_at=now, disk_gone_at=now)
        return True

    async def end(self, deletion_id: str) -> bool:
        """Finish a deletion once every live node has confirmed: delete its blobs. Returns whether it has ended.

        Raises:
            StoreUnavailable, ForeignStore
        """
        async with self._database.read() as connection:
            deletion = await deletions.find_deletion(connection, deletion_id)
            nodes = await list_nodes(connection)
        if deletion is None or deletion.finished_at is not None or awaited(deletion, nodes, self._clock()):
            return False
        if not deletion.blobs_decided and not await self._blobs.remove(deletion_id):
            return False
        return await finish_deletion(self._database, deletion_id, at=self._clock())

    async def _try(self, deletion: Deletion) -> None:
        try:
            await self._advance_one(deletion)
        except (EngineUnavailable, RegistryUnavailable, StorageError) as error:
            # Log each problem once, not every second.
            if self._troubles.get(deletion.id) != str(error):
                logger.warning("Deletion %s of %s waits: %s", deletion.id, deletion.subject, error)
            self._troubles[deletion.id] = str(error)
        else:
            self._troubles.pop(deletion.id, None)

    async def _advance_one(self, deletion: Deletion) -> None:
        if deletion.file_id is not None and not confirmed(deletion, self._node):
            if not await self._leave_folder(deletion, deletion.file_id):
                return
        elif deletion.versions and not confirmed(deletion, self._node):
            fate = deletion.nodes.get(self._node)
            if (fate is None or fate.engine_gone_at is None) and not await self.leave_engine(deletion):
                return
            if not await self.leave_disk(deletion):
                return
        if self._finishes and deletion.finished_at is None:
            await self.end(deletion.id)

    def _forget_others(self, unfinished: Iterable[Deletion]) -> None:
        current = {deletion.id for deletion in unfinished}
        for entries in (self._barriers, self._troubles):
            for identity in [identity for identity in entries if identity not in current]:
                del entries[identity]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._woken.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("The deletions could not be advanced: %s", error)


async def finish_deletion(database: Database, deletion_id: str, *, at: datetime) -> bool:
    """Finish a deletion whose steps are all done. Returns False if it is already finished.

    Raises:
        RegistryUnavailable
    """
    async with database.write() as connection:
        deletion = await deletions.find_deletion(connection, deletion_id, lock=True)
        if deletion is None or not await deletions.finish(connection, deletion_id, at=at):
            return False
        for node in await list_nodes(connection) if deletion.on_nodes else ():
            if not confirmed(deletion, node.id) and not node.forgotten(at):
                # The node is absent. Its worker catches up when it returns.
                await deletions.confirm(connection, deletion_id, node.id)
        gone = sum(fate.gone_at is not None for fate in deletion.blobs.values())
        await audit.record(
            connection,
            at=at,
            actor=_ACTOR,
            action="deletion.finish",
            tenant=deletion.tenant or None,
            subject=deletion.subject,
            after={"deletion": deletion_id, "blobs": gone},
        )
    return True
