"""Completion of chunks and batches on one server, in tasks that repeat their work until it succeeds."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from adapters.errors import StorageError
from app.database.open_batches import OpenBatch
from app.domain.errors import TenoraError
from app.services.batches.chunk_runs import ChunkRun
from app.services.batches.finishing import Finisher
from app.services.batches.line_failures import LineFailures
from app.services.batches.workload import Workload
from app.services.usage.ledger import Ledger

logger = logging.getLogger(__name__)

#: Seconds between two attempts to finish a chunk or a batch, at first and at most.
_LEAST_RETRY_S, _MOST_RETRY_S = 0.5, 10.0


class Completion:
    """Completes chunks whose lines have all ended, and batches whose chunks have.

    Args:
        advanced: callback when the lines of a chunk have ended, and when the chunk is done or its lines run again. Its
            argument tells whether no chunk of the batch is left here.
    """

    def __init__(
        self,
        workload: Workload,
        failures: LineFailures,
        ledger: Ledger,
        finisher: Finisher,
        *,
        advanced: Callable[[bool], None],
    ) -> None:
        self._workload, self._failures, self._ledger, self._finisher = workload, failures, ledger, finisher
        self._advanced = advanced
        self._finalizing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def close_if_ended(self, chunk: ChunkRun) -> None:
        """Begin to move the results of a chunk to the store, if all its lines have ended."""
        if chunk.ended and not chunk.closing and not self._workload.leaving:
            chunk.closing = True
            self._begin(self._close(chunk))
            self._advanced(False)

    def finalize(self, entry: OpenBatch) -> None:
        """Begin to write the files of a batch of which no server runs a chunk."""
        self._finalizing.add(entry.batch.id)
        self._begin(self._finalize(entry))

    def finalizes(self, batch_id: str) -> bool:
        """Return whether this server writes the files of a batch."""
        return batch_id in self._finalizing

    def tidy(self) -> None:
        """Begin to delete what a server left that died after the end of a batch."""
        self._begin(self._tidy(None))

    async def stop(self) -> None:
        """Cancel all work; a later start continues it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _close(self, chunk: ChunkRun) -> None:
        async def close() -> None:
            await self._failures.flush()
            await self._ledger.ship()
            missing = await self._finisher.finish_chunk(chunk.chunk)
            if missing:
                # Not expected: an answer that this server had was lost with its disk.
                logger.warning("%d lines of the batch %s run again.", len(missing), chunk.batch_id)
                chunk.waiting.extend(place for place in chunk.chunk.lines if place.number in missing)
                chunk.closing = False
                return
            await self._workload.drop(chunk)

        await self._insist(close, chunk.batch_id)
        self._advanced(not self._workload.of_batch(chunk.batch_id))

    async def _finalize(self, entry: OpenBatch) -> None:
        batch = entry.batch

        async def finalize() -> None:
            if await self._finisher.finalize(batch, entry.slug):
                logger.info("The batch %s has ended.", batch.id)
                await self._tidy(batch.id)

        try:
            await self._insist(finalize, batch.id)
        finally:
            self._finalizing.discard(batch.id)

    async def _tidy(self, batch_id: str | None) -> None:
        try:
            await self._finisher.tidy(batch_id)
        except (TenoraError, StorageError, OSError) as error:
            logger.warning("Results of ended batches are deleted later: %s", error)

    async def _insist(self, work: Callable[[], Awaitable[None]], batch_id: str) -> None:
        """Do work, again and again while the database or the store is away."""
        delay_s = _LEAST_RETRY_S
        while True:
            try:
                await work()
            except (TenoraError, StorageError, OSError) as error:
                logger.warning("The batch %s waits: %s", batch_id, error)
                self._workload.fail(batch_id, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MOST_RETRY_S)
            else:
                if batch := self._workload.batches.get(batch_id):
                    batch.progress()
                return

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("Work on a batch failed.", exc_info=error)
