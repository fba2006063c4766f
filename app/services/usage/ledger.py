"""Where usage records are kept: on this node's disk at once, in the database a moment later."""

import asyncio
import logging
from itertools import islice
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import usage
from app.database.session import Database
from app.domain.errors import RegistryUnavailable
from app.domain.usage import UsageRecord
from app.services.limits.late_settlement import count_late
from app.services.usage.journal import Journal, forget, read

logger = logging.getLogger(__name__)

#: Seconds between two times that records are brought into the database.
EVERY_S = 1.0
#: Records of one transaction.
_BATCH = 500


class Ledger:
    """The usage records of one server.

    A record is durable when the journal has it. The database may be gone for as long as the disk has room; what it
    has got twice, as a server died between the two, it keeps once.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database, self._journal = database, journal
        self._shipping = asyncio.Lock()

    async def open(self) -> None:
        """Raises:
        OSError: the journal's folder cannot be made.
        """
        await asyncio.to_thread(self._journal.open)

    def waiting_bytes(self) -> int:
        """What the journal holds and the database does not. Blocks for a moment, in any thread.

        Raises:
            OSError
        """
        return self._journal.size()

    async def close(self) -> None:
        """Bring in what is left; what the database does not take now waits for the next start."""
        try:
            await self.ship()
        except (RegistryUnavailable, OSError) as error:
            logger.warning("usage records stay in the journal until the next start: %s", error)
        await self._journal.close()

    async def keep(self, record: UsageRecord) -> None:
        """Return when the record is durable; it will be, also if the caller is cancelled meanwhile.

        Raises:
            RegistryUnavailable: neither the disk nor the database took it.
        """
        try:
            await self._journal.add(record)
        except OSError:
            logger.exception("the usage journal cannot be written: a record goes to the database at once")
            async with self._database.write() as connection:
                await _add(connection, [record])

    async def ship(self) -> None:
        """Bring into the database what was durable when this was called.

        Raises:
            RegistryUnavailable, OSError: it stays in the journal.
        """
        async with self._shipping:
            # First what was left by others or by a database that was gone: while that cannot be brought in, this
            # server goes on with the file that it has.
            for path in await self._journal.left():
                await self._ship(path)
            for path in await self._journal.sealed():
                await self._ship(path)

    async def _ship(self, path: Path) -> None:
        records = read(path)
        while batch := await asyncio.to_thread(lambda: list(islice(records, _BATCH))):
            async with self._database.write() as connection:
                await _add(connection, batch)
        await asyncio.to_thread(forget, path)


async def _add(connection: AsyncConnection, records: list[UsageRecord]) -> None:
    await count_late(connection, await usage.add(connection, records))
