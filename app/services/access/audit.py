"""Audit trail integrity: seal new rows while the server runs, verify all of them on demand, trim old ones."""

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
from app.support.single_flight import SingleFlight

logger = logging.getLogger(__name__)

#: Seconds between two sealing passes.
EVERY_S = 5.0
#: Rows per query.
BATCH = 1000
#: Most problems that a verification for an HTTP answer describes; it counts the others.
MOST_PROBLEMS = 100
#: The database aborts a transaction that takes longer than this between its audit row and its commit.
_SETTLED = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a verification of the whole trail.

    Attributes:
        sealed: number of sealed rows.
        fresh: number of rows that are not sealed yet; they are only seconds old while a server runs.
        problems: descriptions of the first problems, the oldest first; empty if nothing was changed.
        problem_count: number of all problems.
        trimmed: highest id of the rows that retention removed; 0 if none.
    """

    sealed: int
    fresh: int
    problems: tuple[str, ...]
    problem_count: int
    trimmed: int = 0


class _Problems:
    """Descriptions of the first problems, and the number of all.

    Args:
        most: number of descriptions to keep; None for all.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self.first, self.count = most, list[str](), 0

    def add(self, *descriptions: str) -> None:
        self.count += len(descriptions)
        room = len(descriptions) if self._most is None else self._most - len(self.first)
        self.first += descriptions[:room]


class AuditService:
    """Audit seals of one registry: an HMAC chain over the rows. Any number of servers may seal, one after another.

    Each server also stores the newest seal that it has seen in a witness file in HOME, its data directory.
    The witness reveals a truncated trail, even if the seals were truncated with it.
    It also stops a server from resealing rows whose seals were removed in order to change them.

    Args:
        peppers: server secrets; new seals use the current pepper, and a seal under any of them is valid.
        witness: path of the witness file.

    Attributes:
        intact: false once the newest seal that this server knows is missing.
        access_log: log of requests that change nothing.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, peppers: Peppers, witness: Path, *, clock: Clock = utc_now) -> None:
        self._database, self._clock, self._witness = database, clock, witness
        self._keys = peppers.derived("audit", "seals")
        self.intact = True
        self._verifying = SingleFlight[Verdict]()
        self.access_log = AccessLog(database, clock=clock)

    async def seal(self) -> int:
        """Seal the rows whose transactions have settled.

        Returns:
            Number of sealed rows; 0 once a seal that this server knows is missing.

        Raises:
            OSError: the witness file cannot be read or written.
        """
        witness, count = await asyncio.to_thread(_read, self._witness), 0
        async with self._database.write() as connection:
            last = await audit_seals.last(connection, lock=True)
            anchor, first = await audit_seals.start(connection)
            trimmed = first.row_id if anchor and self._is_ours(anchor, first) else 0
            self.intact = witness is None or witness.row_id <= trimmed or await audit_seals.holds(connection, witness)
            if not self.intact:
                logger.error(
                    "The audit trail was tampered with; sealing has stopped. Run `tenora server audit verify`."
                )
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

    async def verify(self, *, most_problems: int | None = None) -> Verdict:
        """Verify every row and every seal.

        Args:
            most_problems: number of problems to describe; None for all.

        Raises:
            OSError: the witness file cannot be read.
        """
        witness = await asyncio.to_thread(_read, self._witness)
        async with self._database.read() as connection:
            while True:
                verdict = await self._look(connection, witness, most_problems)
                anchor, _ = await audit_seals.start(connection)
                # Verify again if a trim ran meanwhile: trimmed rows are not missing.
                if (anchor.row_id if anchor else 0) == verdict.trimmed:
                    return verdict

    async def verify_once(self) -> Verdict:
        """Verify as ``verify``, with up to ``MOST_PROBLEMS`` problems; calls at the same time share one verification.

        Raises:
            OSError: the witness file cannot be read.
        """
        return await self._verifying.run("trail", lambda: self.verify(most_problems=MOST_PROBLEMS))

    async def _look(self, connection: AsyncConnection, witness: Seal | None, most_problems: int | None) -> Verdict:
        anchor, previous = await audit_seals.start(connection)
        trimmed, count, found = previous.row_id, 0, _Problems(most_problems)
        if anchor is not None and not self._is_ours(anchor, previous):
            found.add(f"The rows up to {trimmed} were removed, and the record of the removal is not valid.")
        old = await events.rows_between(connection, 0, trimmed, limit=BATCH)
        found.add(*(f"Row {row.id} was inserted later, before the start of the trail." for row in old))
        witnessed = witness is not None and witness.row_id <= trimmed
        while seals := await audit_seals.above(connection, previous.row_id, limit=BATCH):
            upto = seals[-1].row_id
            rows = await events.rows_between(connection, previous.row_id, upto, limit=upto - previous.row_id)
            found.add(*await asyncio.to_thread(problems, self._keys, previous, rows, seals))
            count, previous, witnessed = count + len(seals), seals[-1], witnessed or witness in seals
        fresh = await events.count_above(connection, previous.row_id)
        if witness is not None and not witnessed:
            reason = f"this server saw row {witness.row_id} sealed, but the seal is missing"
            found.add(f"The end of the trail was cut off: {reason}.")
        return Verdict(count, fresh, tuple(found.first), found.count, trimmed)

    async def trim(self, before: datetime) -> int:
        """Remove a batch of the sealed rows from before a time, the oldest first.

        Rows that no longer match their seals are kept: a tampered row must not be lost together with its proof.

        Returns:
            Number of removed rows; 0 if there are none, or if they were tampered with.
        """
        async with self._database.write() as connection:
            newest = await audit_seals.last(connection, lock=True)
            anchor, first = await audit_seals.start(connection)
            upto = min(newest.row_id, await events.settled_id(connection, before=before))
            seals = [
                seal for seal in await audit_seals.above(connection, first.row_id, limit=BATCH) if seal.row_id <= upto
            ]
            if not seals:
                return 0
            last = seals[-1]
            rows = await events.rows_between(connection, first.row_id, last.row_id, limit=last.row_id - first.row_id)
            changed = await asyncio.to_thread(problems, self._keys, first, rows, seals)
            if changed or (anchor is not None and not self._is_ours(anchor, first)):
                logger.error(
                    "The audit trail was tampered with; trimming has stopped. Run `tenora server audit verify`."
                )
                return 0
            await audit_seals.trim(connection, anchored(self._keys[0], last))
        return len(seals)

    def _is_ours(self, anchor: Seal, first: Seal) -> bool:
        return any(hmac.compare_digest(anchor.mac, anchored(key, first).mac) for key in self._keys)


def _write(path: Path, last: Seal) -> None:
    """Write the witness atomically: a partial file would look like tampering."""
    temporary = path.with_suffix(f".{secrets.token_hex(4)}")
    with temporary.open("w") as file:
        json.dump(asdict(last), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path) -> Seal | None:
    return Seal(**json.loads(path.read_text())) if path.exists() else None
