"""Batch sweeper: retention of batches that have ended.

A batch is hidden some days after its end, once none of its files is live. Its row stays a week longer, so that a list
can continue after it. Usage records and the audit trail have other retentions, and stay.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import batch_retention
from app.database.session import Database
from app.domain.clock import Clock, utc_now

logger = logging.getLogger(__name__)

EVERY_S = 60.0

#: How long rows of hidden batches are kept, as those of deleted files are.
REMEMBERED = timedelta(days=7)
#: Rows in one transaction, so that others can write between two of them.
_STEP = 100


class BatchSweeper:
    """Periodic clean-up that runs on every server. Its steps are idempotent, so servers may sweep at the same time.

    Args:
        kept_days: days for which a batch is kept after its end, and longer while one of its files is live.
    """

    def __init__(self, database: Database, *, kept_days: float, clock: Clock = utc_now) -> None:
        self._database, self._kept, self._clock = database, timedelta(days=kept_days), clock

    async def sweep(self) -> None:
        """Hide and delete what is due, in steps.

        Raises:
            RegistryUnavailable: the next call continues.
        """
        now = self._clock()
        hidden = await self._in_steps(
            lambda connection: batch_retention.hide_ended(connection, before=now - self._kept, at=now, limit=_STEP)
        )
        if hidden:
            logger.info("Removed %d batches that had ended.", hidden)
        await self._in_steps(
            lambda connection: batch_retention.delete_hidden(connection, before=now - REMEMBERED, limit=_STEP)
        )

    async def _in_steps(self, step: Callable[[AsyncConnection], Awaitable[int]]) -> int:
        total = 0
        while True:
            async with self._database.write() as connection:
                count = await step(connection)
            total += count
            if count < _STEP:
                return total
