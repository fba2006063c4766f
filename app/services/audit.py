"""Sealing the audit trail while the server runs, and proving later that nobody changed it."""

import asyncio
import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from app.audit import GENESIS, Seal, problems, sealed
from app.clock import Clock, utc_now
from app.database import audit_seals as stored
from app.database import events
from app.database.session import Database
from app.secrets import derive
from app.services.accesses import AccessTrail

logger = logging.getLogger(__name__)

#: Seconds between two times that new rows are sealed.
EVERY_S = 5.0
#: Rows read at once.
BATCH = 1000
#: A transaction that takes longer than this from its audit row to its commit is given up by its database.
_SETTLED = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look at the whole trail found.

    Attributes:
        sealed: rows under seal; ``fresh`` are those behind them, seconds old as long as a server runs.
        problems: in words, the oldest first; none: nobody changed anything.
    """

    sealed: int
    fresh: int
    problems: tuple[str, ...]


class AuditService:
    """The seals of one registry. Any number of servers seal, one after another.

    Each keeps the newest seal that it saw in its HOME too: who cuts off the trail's end, seals and all, is found out
    there, and nobody seals again what was unsealed to be changed.

    Args:
        pepper: the server's secret, from which the seals' key is derived.
        witness: the file in HOME.

    Attributes:
        intact: false once the newest seal that this server knows was gone.
        accesses: what goes into the trail that changes nothing.
    """

    def __init__(self, database: Database, pepper: bytes, witness: Path, *, clock: Clock = utc_now) -> None:
        self._database, self._clock, self._witness = database, clock, witness
        self._key = derive(pepper, "audit", "seals")
        self.intact = True
        self.accesses = AccessTrail(database, clock=clock)

    async def seal(self) -> int:
        """Seal the rows that are settled; returns how many: none, once a seal that this server knows is gone.

        Raises:
            RegistryUnavailable, OSError
        """
        witness, count = await asyncio.to_thread(_read, self._witness), 0
        async with self._database.write() as connection:
            last = await stored.last(connection, lock=True)
            self.intact = witness is None or await stored.holds(connection, witness)
            if not self.intact:
                logger.error("the audit trail was tampered with, and is sealed no more: run tenora audit verify")
                return 0
            upto = await events.settled_id(connection, before=self._clock() - _SETTLED)
            while rows := await events.rows_between(connection, last.row_id, upto, limit=BATCH):
                seals: list[Seal] = []
                for row in rows:
                    last = sealed(self._key, last, row)
                    seals.append(last)
                await stored.add(connection, seals)
                count += len(seals)
        if last not in (witness, GENESIS):
            await asyncio.to_thread(_write, self._witness, last)
        return count

    async def verify(self) -> Verdict:
        """Look at every row and every seal.

        Raises:
            RegistryUnavailable, OSError
        """
        witness = await asyncio.to_thread(_read, self._witness)
        count, found, previous, seen = 0, list[str](), GENESIS, False
        async with self._database.read() as connection:
            while seals := await stored.above(connection, previous.row_id, limit=BATCH):
                upto = seals[-1].row_id
                rows = await events.rows_between(connection, previous.row_id, upto, limit=upto - previous.row_id)
                found += problems(self._key, previous, rows, seals)
                count, previous, seen = count + len(seals), seals[-1], seen or witness in seals
            fresh = await events.count_above(connection, previous.row_id)
        if witness is not None and not seen:
            found.append(f"this server saw row {witness.row_id} sealed, and that seal is no more: the end was cut off")
        return Verdict(count, fresh, tuple(found))


def _write(path: Path, last: Seal) -> None:
    """In one go: half a witness would accuse everybody."""
    temporary = path.with_suffix(f".{secrets.token_hex(4)}")
    with temporary.open("w") as file:
        json.dump(asdict(last), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path) -> Seal | None:
    return Seal(**json.loads(path.read_text())) if path.exists() else None
