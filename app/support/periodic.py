"""Work that a server repeats for as long as it lives."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from adapters.errors import StorageError
from app.domain.errors import EngineUnavailable, RegistryUnavailable

logger = logging.getLogger(__name__)


class Periodic:
    """Calls ``work`` again and again, never two at once.

    A database, store or engine that does not answer just then is logged, and the next call tries again; so is any
    other error, with its traceback: one bad row must not end what keeps all the others in order.

    Args:
        every_s: the pause between the end of one call and the next, in seconds.

    Attributes:
        succeeded_at: when a call last ended well, Unix time; 0: none has.
    """

    def __init__(self, name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self.name, self._every_s, self._work = name, every_s, work
        self.succeeded_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with a first call at once."""
        self._task = asyncio.create_task(self._repeat(), name=self.name)

    async def stop(self) -> None:
        """End, cancelling a call under way; harmless before ``start``."""
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
                logger.warning("%s: %s", self.name, error)
            except Exception:
                logger.exception("%s failed; it is tried again", self.name)
            await asyncio.sleep(self._every_s)
