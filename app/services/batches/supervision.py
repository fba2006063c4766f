"""Changes of batches that no caller asks for: expiry, revoked keys, disabled tenants, and the end of all lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from app.database import batches, open_batches
from app.database.open_batches import OpenBatch, OpenRow
from app.database.session import Database
from app.domain.batches import Batch, BatchState, Cause
from app.domain.clock import Clock, utc_now
from app.services.batches.causes import KEY_REVOKED, TENANT_DELETED, TENANT_DISABLED
from app.services.common.batch_states import SERVER, cancel, change_state

_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Survey:
    """The open batches at one moment, oldest first.

    Attributes:
        rows: all batches that are not final.
        worked_on: those that run, are being cancelled or finalized.
    """

    rows: Sequence[OpenRow]
    worked_on: Sequence[OpenBatch]


class Supervisor:
    """Supervisor of all open batches. Every server has one; each change is a compare-and-set.

    A survey reads a narrow row of each open batch and the rights of each key. A whole batch is read when it is new or
    its state has changed. For its cost see docs/decisions/0048-survey-of-open-batches.md.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        #: Batches of the last survey.
        self._batches: dict[str, Batch] = {}

    async def survey(self) -> Survey:
        """Advance open batches where it is due, and return all of them."""
        survey = await self._read()
        changed = False
        for entry in survey.worked_on:
            changed |= await self._advance(entry)
        return await self._read() if changed else survey

    async def _read(self) -> Survey:
        async with self._database.read() as connection:
            rows = await open_batches.open_rows(connection)
            worked_on = {row.id: row for row in rows if row.state is not BatchState.VALIDATING}
            rights = await open_batches.rights_of_creators(connection) if worked_on else {}
            changed = [row.id for row in worked_on.values() if self._has_changed(row)]
            fresh = await batches.find_batches(connection, changed)
        known = self._batches | fresh
        self._batches = {batch_id: known[batch_id] for batch_id in worked_on if batch_id in known}
        entries = [
            OpenBatch(batch, rights[worked_on[batch.id].creator], worked_on[batch.id].ended)
            for batch in self._batches.values()
            if worked_on[batch.id].creator in rights and not batch.state.final
        ]
        return Survey(rows, entries)

    def _has_changed(self, row: OpenRow) -> bool:
        batch = self._batches.get(row.id)
        return batch is None or batch.state is not row.state or batch.blocked != row.blocked

    async def block(self, batch: Batch, cause: Cause | None) -> None:
        """Show why no line of a batch runs at present, or that its lines run again."""
        if batch.blocked != cause:
            async with self._database.write() as connection:
                await batches.set_blocked(connection, batch.id, cause)

    async def _advance(self, entry: OpenBatch) -> bool:
        """Make the change that is due, if there is one; return whether the batch changed."""
        batch, now = entry.batch, self._clock()
        if batch.state is not BatchState.IN_PROGRESS:
            return False
        if entry.ended:
            return await self._finalize(entry, now)
        if entry.rights.tenant_deleted or entry.rights.key_revoked:
            return await self._cancel(entry, TENANT_DELETED if entry.rights.tenant_deleted else KEY_REVOKED, now)
        if batch.expires_at <= now:
            return await self._finalize(entry, now, values={"expired_at": now})
        if entry.tenant_disabled != (batch.blocked == TENANT_DISABLED):
            await self.block(batch, TENANT_DISABLED if entry.tenant_disabled else None)
            return True
        return False

    async def _finalize(self, entry: OpenBatch, at: datetime, values: Mapping[str, object] = _NOTHING) -> bool:
        async with self._database.write() as connection:
            return await change_state(
                connection,
                entry.batch,
                BatchState.FINALIZING,
                tenant=entry.slug,
                at=at,
                values={"blocked": None, **values},
            )

    async def _cancel(self, entry: OpenBatch, reason: Cause, at: datetime) -> bool:
        async with self._database.write() as connection:
            batch = await batches.find_batch(connection, entry.batch.id, lock=True)
            if batch is None:
                return False
            state = await cancel(connection, batch, tenant=entry.slug, at=at, actor=SERVER, reason=reason)
            return state is not None
