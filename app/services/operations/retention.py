"""Retention: delete rows that are older than the settings allow, in small batches."""

from datetime import datetime, timedelta

from app.database import usage
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.services.access.audit import AuditService

#: Seconds between two retention passes.
EVERY_S = 600.0
#: Rows in one transaction, so that others can write between two batches.
BATCH = 1000


class RetentionService:
    """Deletes expired rows. Any number of servers may run it; each deletes what is left.

    Args:
        usage_days: days for which records of single requests are kept, 0 for ever; their hourly sums stay, their
            hourly latencies do not.
        audit_days: days for which the audit trail is kept, 0 for ever.
    """

    def __init__(
        self, database: Database, audit: AuditService, *, usage_days: int, audit_days: int, clock: Clock = utc_now
    ) -> None:
        self._database, self._audit, self._clock = database, audit, clock
        self._usage_days, self._audit_days = usage_days, audit_days

    async def sweep(self) -> None:
        """Delete everything that has expired.

        Raises:
            RegistryUnavailable
        """
        now = self._clock()
        if self._usage_days:
            before = now - timedelta(days=self._usage_days)
            while await self._forget_usage(before) == BATCH:
                pass
            while await self._forget_latencies(before) == BATCH:
                pass
        if self._audit_days:
            while await self._audit.trim(now - timedelta(days=self._audit_days)):
                pass

    async def _forget_usage(self, before: datetime) -> int:
        async with self._database.write() as connection:
            return await usage.forget(connection, before, limit=BATCH)

    async def _forget_latencies(self, before: datetime) -> int:
        async with self._database.write() as connection:
            return await usage.forget_latencies(connection, before, limit=BATCH)
