"""Turns of tenants with queries over many usage records."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from adapters.fair_semaphore import FairSemaphore, QueueFull
from app.domain.errors import Busy

#: Queries that run at the same time, of which one tenant has one. SQLite has four connections for reads.
_AT_ONCE = 2
_PATIENCE_S = 10.0
_RETRY_AFTER_S = 2
#: Share of the platform. It is no slug.
_PLATFORM = ""


class UsageTurns:
    """Turns with reports, series and lists of requests, whose queries may take seconds.

    Without turns, one tenant could hold all connections to the database, which every request of every tenant needs.
    """

    def __init__(self) -> None:
        self._semaphore = FairSemaphore(_AT_ONCE)

    @asynccontextmanager
    async def turn(self, tenant: str | None) -> AsyncGenerator[None]:
        """Wait for the tenant's turn, or with None for the platform's, and hold it for the block.

        Raises:
            Busy: it did not come within ten seconds.
        """
        try:
            async with self._semaphore.permit(_PLATFORM if tenant is None else tenant, patience_s=_PATIENCE_S):
                yield
        except QueueFull:
            message = "Too many reports and lists of requests are waiting for the database. Try again later."
            raise Busy(message, retry_after=_RETRY_AFTER_S) from None
