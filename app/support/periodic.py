"""Periodic background jobs."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from adapters.errors import StorageError
from app.domain.errors import EngineUnavailable, RegistryUnavailable

logger = logging.getLogger(__name__)


class Periodic:
    """Runs ``work`` repeatedly, never concurrently with itself.

    Errors are logged and the next run retries, so that one bad row does not stop the job. An unavailable database,
    store or engine is logged without a traceback.

    Args:
        every_s: pause between the end of one run and the start of the next, in seconds.

    Attributes:
        succeeded_at: end of the last successful run, Unix time; 0 before the first.
    """

    def __init__(self, name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self.name, self._every_s, self._work = name, every_s, work
        self.succeeded_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the job; the first run begins at once."""
        self._task = asyncio.create_task(self._repeat(), name=self.name)

    async def stop(self) -> None:
        """Stop the job and cancel a run in progress. Does nothing before ``start``."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _repeat(self) -> None:
        while True:
            try:
                await self._work()
                self.succeeded_at = time.time()
            except (RegistryUnavailable, StorageError, EngineUnavailable) as error:
                logger.warning("Periodic job %r failed: %s", self.name, error)
            except Exception:
                logger.exception("Periodic job %r failed. It runs again in %g s.", self.name, self._every_s)
            await asyncio.sleep(self._every_s)
