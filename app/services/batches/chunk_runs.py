"""Chunks that this server holds: their lines in flight, and those that wait."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from app.domain.batches import Chunk, LinePlace
from app.scheduling.batch_turns import InHand

#: Attempts of a line that meets an error of the server which no rule covers.
MOST_ATTEMPTS = 3


class ChunkRun:
    """A chunk under this server's lease.

    Attributes:
        key: batch and number.
        source: local copy of the input file; None until it is there.
        waiting: lines that have not been started, or could not run yet.
        closing: whether all its lines have ended, and its results are being moved to the store.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.key = (chunk.batch_id, chunk.number)
        self.source: Path | None = None
        self.waiting = deque[LinePlace]()
        self.closing = False
        self._running: set[asyncio.Task[None]] = set()
        #: Unexpected errors by line. They end with the chunk, however its lines end.
        self._errors = Counter[int]()
        self._resources = AsyncExitStack()

    async def open(self, source: Any, lines: set[int]) -> None:
        """Hold the local copy of the input file, and let these lines wait.

        Args:
            source: context manager that provides the copy.
        """
        self.source = await self._resources.enter_async_context(source)
        self.waiting.extend(place for place in self.chunk.lines if place.number in lines)

    async def close(self) -> None:
        """Release the local copy."""
        await self._resources.aclose()

    @property
    def batch_id(self) -> str:
        return self.chunk.batch_id

    @property
    def running(self) -> int:
        """Number of lines in flight."""
        return len(self._running)

    @property
    def ended(self) -> bool:
        """Return whether every line was started and has ended."""
        return self.source is not None and not self.waiting and not self._running

    @property
    def in_hand(self) -> InHand:
        return InHand(self.batch_id, self.chunk.version_id, len(self.waiting), self.running)

    def may_retry(self, line: int) -> bool:
        """Count an unexpected error of a line, and return whether the line has attempts left."""
        self._errors[line] += 1
        return self._errors[line] < MOST_ATTEMPTS

    def start(self, work: Coroutine[Any, Any, None], done: Callable[[], None]) -> None:
        """Run a line in a task."""
        task = asyncio.create_task(work)
        self._running.add(task)

        def ended(ended_task: "asyncio.Task[None]") -> None:
            self._running.discard(ended_task)
            done()

        task.add_done_callback(ended)

    async def abort(self) -> None:
        """Abort the lines in flight; those whose answer is complete keep it."""
        self.waiting.clear()
        for task in self._running:
            task.cancel()
        await self.settled()

    async def settled(self, timeout_s: float | None = None) -> None:
        """Wait until no line is in flight."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout_s)
