"""Changes of batches that no caller asks for: expiry, revoked keys, disabled tenants, and the end of all lines."""

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime

from app.database import batch_claims, batches
from app.database.batch_claims import OpenBatch
from app.database.session import Database
from app.domain.batches import Batch, BatchState, Cause
from app.domain.clock import Clock, utc_now
from app.services.batches.causes import KEY_REVOKED, TENANT_DELETED, TENANT_DISABLED


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
        batch, now = entry.batch, self._clock()
        if batch.state is not BatchState.IN_PROGRESS:
            return False
        if batch.id in ended:
            return await self._move(batch, BatchState.FINALIZING, now)
        if entry.tenant_deleted or entry.key_revoked:
            reason = TENANT_DELETED if entry.tenant_deleted else KEY_REVOKED
            return await self._move(batch, BatchState.CANCELLING, now, reason=reason)
        if batch.expires_at <= now:
            return await self._move(batch, BatchState.FINALIZING, now, expired=True)
        if entry.tenant_disabled != (batch.blocked == TENANT_DISABLED):
            await self.block(batch, TENANT_DISABLED if entry.tenant_disabled else None)
            return True
        return False

    async def _move(
        self, batch: Batch, state: BatchState, at: datetime, *, reason: Cause | None = None, expired: bool = False
    ) -> bool:
        values: dict[str, object] = {"blocked": None}
        if reason is not None:
            values["reason"] = asdict(reason)
        if expired:
            values["expired_at"] = at
        async with self._database.write() as connection:
            return await batches.set_state(
                connection, batch.id, state, expected=[BatchState.IN_PROGRESS], at=at, values=values
            )
