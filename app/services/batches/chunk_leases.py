"""Leases of one server on chunks, and on batches whose number of concurrent lines is capped."""

from collections.abc import Collection
from datetime import datetime, timedelta

from app.database import batch_claims, batches
from app.database.session import Database
from app.domain.batches import BatchState, Chunk
from app.domain.clock import Clock
from app.scheduling.batch_turns import FreeChunks


class ChunkLeases:
    """Leases of one server. Each call is one transaction.

    Raises (every method):
        RegistryUnavailable

    Args:
        node: id of the server.
        lost_s: seconds after the last renewal at which a lease ends.
    """

    def __init__(self, database: Database, *, node: str, lost_s: float, clock: Clock) -> None:
        self._database, self._node, self._lost_s, self._clock = database, node, lost_s, clock

    async def free(self, batch_ids: Collection[str]) -> list[FreeChunks]:
        """Count the chunks of these batches that the server may take, by batch and version."""
        async with self._database.read() as connection:
            return await batch_claims.free_chunks(connection, batch_ids, node=self._node, now=self._clock())

    async def take_chunk(self, batch_id: str, version_id: int | None) -> Chunk | None:
        """Lease the first free chunk of a batch and a version; None if there is none any more."""
        now, until = self._term()
        async with self._database.write() as connection:
            return await batch_claims.claim(connection, batch_id, version_id, node=self._node, now=now, until=until)

    async def take_batch(self, batch_id: str) -> bool:
        """Take or renew the lease on a whole running batch; False if another server has it."""
        now, until = self._term()
        async with self._database.write() as connection:
            return await batches.lease(
                connection, batch_id, BatchState.IN_PROGRESS, node=self._node, now=now, until=until
            )

    async def renew(self, used: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Renew all leases on chunks, and return batch and number of the chunks that are held.

        Args:
            used: chunks that the server runs. Others are given back: an earlier attempt did not reach the database.
        """
        _, until = self._term()
        async with self._database.write() as connection:
            held = await batch_claims.renew(connection, self._node, until)
            await batch_claims.release(connection, self._node, held.difference(used))
        return held.intersection(used)

    async def release(self, chunks: Collection[tuple[str, int]]) -> None:
        """Give back chunks."""
        async with self._database.write() as connection:
            await batch_claims.release(connection, self._node, chunks)

    async def release_all(self) -> None:
        """Give back all chunks and batches."""
        async with self._database.write() as connection:
            await batch_claims.release(connection, self._node)
            await batches.release_leases(connection, self._node)

    async def is_run(self, batch_id: str) -> bool:
        """Return whether a server runs a chunk of a batch."""
        async with self._database.read() as connection:
            return await batch_claims.is_run(connection, batch_id, self._clock())

    def _term(self) -> tuple[datetime, datetime]:
        now = self._clock()
        return now, now + timedelta(seconds=self._lost_s)
