"""Workload of one server: the open batches, and the chunks of them that the server holds."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from adapters.errors import StorageError
from app.database.open_batches import OpenBatch
from app.domain.batches import BatchState, Cause
from app.domain.clock import Clock
from app.domain.errors import TenoraError
from app.scheduling.batch_pace import BatchPace
from app.services.batches.causes import cause_of
from app.services.batches.chunk_runs import ChunkRun

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchRun:
    """A batch as this server runs it.

    Attributes:
        cause: why this server cannot go on with it; None while it can.
        progressed: whether work on it has succeeded since the cause was last written.
    """

    entry: OpenBatch
    pace: BatchPace
    cause: Cause | None = None
    progressed: bool = False

    @property
    def runnable(self) -> bool:
        """Return whether its lines may run."""
        return self.entry.batch.state is BatchState.IN_PROGRESS and not self.entry.tenant_disabled

    def progress(self) -> None:
        """Record work that succeeded."""
        self.cause, self.progressed = None, True


class Workload:
    """Batches and chunks of one server.

    Attributes:
        batches: batches that run, are being cancelled or finalized, by id.
        chunks: chunks under this server's lease by batch and number, in the order in which they were taken.
        leaving: whether the server is about to end: it takes no more chunks and starts no more lines.
    """

    def __init__(self, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._clock, self._monotonic = clock, monotonic
        self.batches: dict[str, BatchRun] = {}
        self.chunks: dict[tuple[str, int], ChunkRun] = {}
        self.leaving = False

    def follow(self, entries: Iterable[OpenBatch]) -> None:
        """Take over the batches that are open now, and forget all others."""
        opened = {entry.batch.id: entry for entry in entries}
        for batch_id, entry in opened.items():
            run = self.batches.get(batch_id)
            if run is None:
                self.batches[batch_id] = BatchRun(entry, BatchPace(entry.batch.options.width))
            else:
                run.entry = entry
        for batch_id in self.batches.keys() - opened.keys():
            del self.batches[batch_id]

    async def drop(self, chunk: ChunkRun) -> None:
        """Let go of a chunk: abort its lines, and release the input file."""
        await chunk.abort()
        await chunk.close()
        if self.chunks.get(chunk.key) is chunk:
            del self.chunks[chunk.key]

    def postpone(self, batch: BatchRun, error: Exception, others: int) -> None:
        """Slow a batch down after an error that says nothing about its line.

        Args:
            others: other lines of the batch in flight.
        """
        batch.pace.refused(others, self._monotonic())
        if not others:
            self.fail(batch.entry.batch.id, error)
        if not isinstance(error, TenoraError | StorageError):
            logger.warning("A line of the batch %s is tried again: %s", batch.entry.batch.id, type(error).__name__)

    def fail(self, batch_id: str, error: Exception) -> None:
        """Record work on a batch that failed and is tried again."""
        if batch := self.batches.get(batch_id):
            batch.cause = cause_of(error, self._clock()) or batch.cause

    def runnable(self) -> dict[str, tuple[str, float]]:
        """Return tenant and weight of the batches whose lines may run."""
        return {
            batch_id: (run.entry.slug, run.entry.caller.weight)
            for batch_id, run in self.batches.items()
            if run.runnable
        }

    def able(self) -> dict[str, tuple[str, float]]:
        """Return tenant and weight of the batches that are not held up while lines of them wait here."""
        in_flight = self.in_flight()
        held_up = {
            chunk.batch_id
            for chunk in self.chunks.values()
            if chunk.waiting and not self.room(chunk.batch_id, in_flight)
        }
        return {batch_id: tenant for batch_id, tenant in self.runnable().items() if batch_id not in held_up}

    def room(self, batch_id: str, in_flight: Mapping[str, int]) -> int:
        """Return how many more lines of a batch may start now."""
        run = self.batches.get(batch_id)
        return run.pace.room(in_flight.get(batch_id, 0), self._monotonic()) if run else 0

    @property
    def running(self) -> int:
        """Number of lines in flight."""
        return sum(chunk.running for chunk in self.chunks.values())

    def in_flight(self) -> Counter[str]:
        """Count the lines in flight by batch."""
        counts = Counter[str]()
        for chunk in self.chunks.values():
            counts[chunk.batch_id] += chunk.running
        return counts

    def waiting(self, tenants: Mapping[str, tuple[str, float]]) -> int:
        """Count the lines of these batches that wait here."""
        return sum(len(chunk.waiting) for chunk in self.chunks.values() if chunk.batch_id in tenants)

    def idle(self, tenants: Mapping[str, tuple[str, float]]) -> set[str]:
        """Return the tenants of these batches of which no line is here."""
        busy = {
            tenants[chunk.batch_id][0]
            for chunk in self.chunks.values()
            if chunk.batch_id in tenants and not chunk.closing
        }
        return {name for name, _ in tenants.values()} - busy

    def of_batch(self, batch_id: str) -> list[ChunkRun]:
        """Return the chunks of a batch that this server holds."""
        return [chunk for chunk in self.chunks.values() if chunk.batch_id == batch_id]
