"""Sealing the audit trail while the server runs, and proving later that nobody changed it."""

import asyncio
import hmac
import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit_seals, events
from app.database.session import Database
from app.domain.audit import GENESIS, Seal, anchored, problems, sealed
from app.domain.clock import Clock, utc_now
from app.services.access.access_log import AccessLog
from app.services.access.peppers import Peppers

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
        trimmed: rows up to this id were removed, as the settings say; 0: none.
    """

    sealed: int
    fresh: int
    problems: tuple[str, ...]
    trimmed: int = 0


class AuditService:
    """The seals of one registry. Any number of servers seal, one after another.

    Each keeps the newest seal that it saw in its HOME too: who cuts off the trail's end, seals and all, is found out
    there, and nobody seals again what was unsealed to be changed.

    Args:
        peppers: the server's secrets; seals are made under the current one, and are good under any of them.
        witness: the file in HOME.

    Attributes:
        intact: false once the newest seal that this server knows was gone.
        accesses: what goes into the trail that changes nothing.
    """

    def __init__(self, database: Database, peppers: Peppers, witness: Path, *, clock: Clock = utc_now) -> None:
        self._database, self._clock, self._witness = database, clock, witness
        self._keys = peppers.derived("audit", "seals")
        self.intact = True
        self.accesses = AccessLog(database, clock=clock)

    async def seal(self) -> int:
        """Seal the rows that are settled; returns how many: none, once a seal that this server knows is gone.

        Raises:
            RegistryUnavailable, OSError
        """
        witness, count = await asyncio.to_thread(_read, self._witness), 0
        async with self._database.write() as connection:
            last = await audit_seals.last(connection, lock=True)
            anchor, first = await audit_seals.start(connection)
            trimmed = first.row_id if anchor and self._is_ours(anchor, first) else 0
            self.intact = witness is None or witness.row_id <= trimmed or await audit_seals.holds(connection, witness)
            if not self.intact:
                logger.error("the audit trail was tampered with, and is sealed no more: run tenora audit verify")
                return 0
            upto = await events.settled_id(connection, before=self._clock() - _SETTLED)
            while rows := await events.rows_between(connection, last.row_id, upto, limit=BATCH):
                seals: list[Seal] = []
                for row in rows:
                    last = sealed(self._keys[0], last, row)
                    seals.append(last)
                await audit_seals.add(connection, seals)
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
        async with self._database.read() as connection:
            while True:
                verdict = await self._look(connection, witness)
                anchor, _ = await audit_seals.start(connection)
                # What was trimmed meanwhile is not missing.
                if (anchor.row_id if anchor else 0) == verdict.trimmed:
                    return verdict

    async def _look(self, connection: AsyncConnection, witness: Seal | None) -> Verdict:
        anchor, previous = await audit_seals.start(connection)
        trimmed, count, found = previous.row_id, 0, list[str]()
        if anchor is not None and not self._is_ours(anchor, previous):
            found.append(f"the start was cut off, up to row {trimmed}, by somebody else")
        old = await events.rows_between(connection, 0, trimmed, limit=BATCH)
        found += [f"row {row.id} was put in later, before the start" for row in old]
        seen = witness is not None and witness.row_id <= trimmed
        while seals := await audit_seals.above(connection, previous.row_id, limit=BATCH):
            upto = seals[-1].row_id
            rows = await events.rows_between(connection, previous.row_id, upto, limit=upto - previous.row_id)
            found += problems(self._keys, previous, rows, seals)
            count, previous, seen = count + len(seals), seals[-1], seen or witness in seals
        fresh = await events.count_above(connection, previous.row_id)
        if witness is not None and not seen:
            found.append(f"this server saw row {witness.row_id} sealed, and that seal is no more: the end was cut off")
        return Verdict(count, fresh, tuple(found), trimmed)

    async def trim(self, before: datetime) -> int:
        """Remove some of the sealed rows from before then, the oldest first; returns how many.

        None, if they are not as they were sealed: what somebody changed must not be lost with its proof.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            newest = await audit_seals.last(connection, lock=True)
            anchor, first = await audit_seals.start(connection)
            upto = min(newest.row_id, await events.settled_id(connection, before=before))
            seals = [
                one for one in await audit_seals.above(connection, first.row_id, limit=BATCH) if one.row_id <= upto
            ]
            if not seals:
                return 0
            last = seals[-1]
            rows = await events.rows_between(connection, first.row_id, last.row_id, limit=last.row_id - first.row_id)
            if problems(self._keys, first, rows, seals) or (anchor is not None and not self._is_ours(anchor, first)):
                logger.error("the audit trail was tampered with, and is trimmed no more: run tenora audit verify")
                return 0
            await audit_seals.trim(connection, anchored(self._keys[0], last))
        return len(seals)

    def _is_ours(self, anchor: Seal, first: Seal) -> bool:
        return any(hmac.compare_digest(anchor.mac, anchored(key, first).mac) for key in self._keys)


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
