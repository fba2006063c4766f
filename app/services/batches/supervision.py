"""Changes of batches that no caller asks for: expiry, revoked keys, disabled tenants, and the end of all lines."""

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType

from app.database import batch_claims, batches
from app.database.batch_claims import OpenBatch
from app.database.session import Database
from app.domain.batches import Batch, BatchState, Cause
from app.domain.clock import Clock, utc_now
from app.services.batches.causes import KEY_REVOKED, TENANT_DELETED, TENANT_DISABLED
from app.services.common.batch_states import SERVER, cancel, change_state

_NOTHING: Mapping[str, object] = MappingProxyType({})


class Supervisor:
    """Supervisor of all open batches. Every server has one; each change is a compare-and-set.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def open_batches(self) -> list[OpenBatch]:
        """Advance open batches where it is due, and return them, oldest first."""
        async with self._database.read() as connection:
            found = await batch_claims.open_batches(connection)
            ended = await batch_claims.batches_without_open_chunks(
                connection, [entry.batch.id for entry in found if entry.batch.state is BatchState.IN_PROGRESS]
            )
        changed = False
        for entry in found:
            changed |= await self._advance(entry, ended)
        if not changed:
            return found
        async with self._database.read() as connection:
            return await batch_claims.open_batches(connection)

    async def block(self, batch: Batch, cause: Cause | None) -> None:
        """Show why no line of a batch runs at present, or that its lines run again."""
        if batch.blocked != cause:
            async with self._database.write() as connection:
                await batches.set_blocked(connection, batch.id, cause)

    async def _advance(self, entry: OpenBatch, ended: Collection[str]) -> bool:
        """Make the change that is due, if there is one; return whether the batch changed."""
        batch, now = entry.batch, self._clock()
        if batch.state is not BatchState.IN_PROGRESS:
            return False
        if batch.id in ended:
            return await self._finalize(entry, now)
        if entry.tenant_deleted or entry.key_revoked:
            return await self._cancel(entry, TENANT_DELETED if entry.tenant_deleted else KEY_REVOKED, now)
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
