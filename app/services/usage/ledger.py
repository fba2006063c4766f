"""Usage ledger: writes records to this node's disk at once, and ships them to the database a moment later."""

import asyncio
import logging
from itertools import islice
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import batch_results, usage
from app.database.session import Database
from app.domain.errors import RegistryUnavailable
from app.domain.usage import UsageEntry
from app.services.limits.late_settlement import count_late, settle_lines
from app.services.usage.journal import Journal, forget, read

logger = logging.getLogger(__name__)

#: Seconds between two shipments to the database.
EVERY_S = 1.0
#: Records per transaction.
_BATCH = 500


class Ledger:
    """The usage records of one server.

    A record is durable once the journal has it. The database may be unavailable for as long as the disk has room. It
    deduplicates records that are shipped twice because a server died in between.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database, self._journal = database, journal
        self._shipping = asyncio.Lock()

    async def open(self) -> None:
        """Open the journal.

        Raises:
            OSError: the journal's folder cannot be created.
        """
        await asyncio.to_thread(self._journal.open)

    def waiting_bytes(self) -> int:
        """Return the size of the backlog in bytes. Blocks briefly, and may run in any thread.

        Raises:
            OSError
        """
        return self._journal.size()

    async def close(self) -> None:
        """Ship the backlog and close the journal. Records that the database does not accept wait for the next start."""
        try:
            await self.ship()
        except (RegistryUnavailable, OSError) as error:
            logger.warning("Usage records stay in the journal until the next start: %s", error)
        await self._journal.close()

    async def keep(self, entry: UsageEntry) -> None:
        """Make an entry durable.

        The journal writes it even if the caller is cancelled.

        Raises:
            RegistryUnavailable: neither the disk nor the database accepted it.
        """
        try:
            await self._journal.add(entry)
        except OSError:
            logger.exception("The usage journal cannot be written; the record goes directly to the database.")
            async with self._database.write() as connection:
                await _add(connection, [entry])

    async def ship(self) -> None:
        """Ship the records that were durable when this was called.

        Raises:
            RegistryUnavailable, OSError: the records stay in the journal.
        """
        async with self._shipping:
            # Ship files from other processes and from earlier outages first. While the database refuses them, this
            # server's file stays unsealed.
            for path in await self._journal.left():
                await self._ship(path)
            for path in await self._journal.sealed():
                await self._ship(path)

    async def _ship(self, path: Path) -> None:
        entries = read(path)
        while batch := await asyncio.to_thread(lambda: list(islice(entries, _BATCH))):
            async with self._database.write() as connection:
                await _add(connection, batch)
        await asyncio.to_thread(forget, path)


async def _add(connection: AsyncConnection, entries: list[UsageEntry]) -> None:
    """Write entries.

    A line that has a result already is dropped with its record: another server ran it, or its batch ended before.
    """
    lines = [entry for entry in entries if entry.result is not None]
    accepted = await batch_results.add_answers(connection, lines) if lines else []
    records = [entry.record for entry in entries if entry.result is None] + [entry.record for entry in accepted]
    await count_late(connection, await usage.add(connection, records))
    used = {entry.reservation: (0, 0) for entry in lines if entry.reservation}
    for entry in accepted:
        if entry.reservation:
            record = entry.record
            used[entry.reservation] = record.prompt_tokens + record.output_tokens, record.cost
    await settle_lines(connection, used)
