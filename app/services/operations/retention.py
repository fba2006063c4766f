"""Removing what is older than the settings say, a little at a time."""

from datetime import datetime, timedelta

from app.database import usage
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.services.access.audit import AuditService

#: Seconds between two times that old rows are looked for.
EVERY_S = 600.0
#: Rows of one transaction: others write between two of them.
BATCH = 1000


class RetentionService:
    """What a registry forgets. Any number of servers do it, each what is left.

    Args:
        usage_days: that records of single requests are kept; their hours' sums stay. 0: for ever.
        audit_days: that the audit trail is kept. 0: for ever.
    """

    def __init__(
        self, database: Database, audit: AuditService, *, usage_days: int, audit_days: int, clock: Clock = utc_now
    ) -> None:
        self._database, self._audit, self._clock = database, audit, clock
        self._usage_days, self._audit_days = usage_days, audit_days

    async def sweep(self) -> None:
        """Remove all that is too old.

        Raises:
            RegistryUnavailable
        """
        now = self._clock()
        if self._usage_days:
            before = now - timedelta(days=self._usage_days)
            while await self._forget_usage(before) == BATCH:
                pass
        if self._audit_days:
            while await self._audit.trim(now - timedelta(days=self._audit_days)):
                pass

    async def _forget_usage(self, before: datetime) -> int:
        async with self._database.write() as connection:
            return await usage.forget(connection, before, limit=BATCH)
