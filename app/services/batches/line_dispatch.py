"""Dispatch of lines: start them while there is room, and act on their outcomes."""

import time

from app.domain.batches import LinePlace
from app.engine.port import Status
from app.engine.status import EngineState
from app.scheduling.batch_pace import most_lines
from app.scheduling.batch_turns import next_line
from app.services.batches.chunk_runs import ChunkRun
from app.services.batches.completion import Completion
from app.services.batches.counts import Counts
from app.services.batches.line_failures import LineFailures
from app.services.batches.line_runner import Answered, Failed, Later, LineRunner, Unexpected
from app.services.batches.workload import BatchRun, Workload


def line_window(engine: Status) -> int:
    """Return the number of sequences in the engine; 0 while none runs.

    While the engine replicas are asleep it is 1: the first line starts a replica.
    """
    status = engine.status()
    if status.state is EngineState.ASLEEP:
        return 1
    return status.window if status.state is EngineState.READY else 0


class LineDispatcher:
    """Dispatcher of the lines in the chunks that this server holds.

    Args:
        share: part of the engine's window for lines while other requests come.
    """

    def __init__(
        self,
        workload: Workload,
        engine: Status,
        lines: LineRunner,
        failures: LineFailures,
        completion: Completion,
        counts: Counts,
        *,
        share: float,
    ) -> None:
        self._share = share
        self._workload, self._engine, self._lines, self._failures = workload, engine, lines, failures
        self._completion, self._counts = completion, counts

    def fill(self) -> None:
        """Start lines while there is room."""
        if self._workload.leaving or not (window := line_window(self._engine)):
            return
        most = most_lines(window, share=self._share, idle_s=time.monotonic() - self._lines.requested_at)
        tenants = self._workload.runnable()
        chunks = [chunk for chunk in self._workload.chunks.values() if chunk.source is not None and not chunk.closing]
        in_flight = self._workload.in_flight()
        total = in_flight.total()
        room = {batch_id: self._workload.room(batch_id, in_flight) for batch_id in tenants}
        hands = {chunk.key: chunk.in_hand for chunk in chunks}
        while total < most:
            choice = next_line(hands.values(), tenants=tenants, room=room)
            if choice is None:
                return
            key = next(key for key, hand in hands.items() if hand is choice)
            chunk = self._workload.chunks[key]
            self._start(chunk, chunk.waiting.popleft())
            hands[key], total = chunk.in_hand, total + 1
            room[choice.batch_id] -= 1

    def _start(self, chunk: ChunkRun, place: LinePlace) -> None:
        chunk.start(self._run(chunk, place), lambda: self._ended(chunk))

    def _ended(self, chunk: ChunkRun) -> None:
        if self._workload.chunks.get(chunk.key) is chunk:
            self._completion.close_if_ended(chunk)
        self.fill()

    async def _run(self, chunk: ChunkRun, place: LinePlace) -> None:
        batch = self._workload.batches.get(chunk.batch_id)
        if batch is None or chunk.source is None:
            return
        entry = batch.entry
        try:
            outcome = await self._lines.run(entry.caller, entry.batch.endpoint, chunk.chunk, place, chunk.source)
        except OSError as error:
            outcome = Later(error)
        if isinstance(outcome, Unexpected):
            outcome = Later(outcome.error) if chunk.may_retry(place.number) else Failed(outcome.result)
        match outcome:
            case Answered():
                self._count(batch, "answered")
            case Failed(result):
                self._failures.add(result)
                self._count(batch, "failed")
            case Later(cause):
                self._counts.lines["postponed"] += 1
                chunk.waiting.appendleft(place)
                # The line that could not run is still in its task.
                others = max(0, self._workload.in_flight()[chunk.batch_id] - 1)
                self._workload.postpone(batch, cause, others)

    def _count(self, batch: BatchRun, outcome: str) -> None:
        self._counts.lines[outcome] += 1
        batch.pace.ended()
        batch.progress()
