"""Batch runner: takes chunks of all batches under a lease, and runs their lines at low priority.

Each server has one. At most as many lines as the engine runs sequences are in flight at once, of all batches together.
A server that dies loses nothing but time: its chunks are free when their leases end, or when it starts again, and the
lines of which it had an answer are in its journal. See :mod:`app.services.usage.ledger`.

The database may be away: leases end, and other servers may take the chunks. Both then run the same lines, but one
result and one usage record of a line are kept.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from adapters.errors import StorageError
from app.database import batch_results
from app.database.batch_claims import OpenBatch
from app.database.session import Database
from app.domain.batches import BatchState, Cause, Chunk, LinePlace, LineResult
from app.domain.clock import Clock, utc_now
from app.domain.errors import RegistryUnavailable, TenoraError
from app.engine.port import EngineEvent, Status
from app.engine.status import EngineState
from app.scheduling.batch_pace import BatchPace
from app.scheduling.batch_turns import BatchTurns, next_line
from app.services.batches.causes import cause_of
from app.services.batches.chunk_leases import ChunkLeases
from app.services.batches.chunk_runs import ChunkRun
from app.services.batches.counts import Counts
from app.services.batches.finishing import Finisher
from app.services.batches.line_runner import Answered, Failed, Later, LineRunner
from app.services.batches.supervision import Supervisor
from app.services.files.contents import FileContents
from app.services.usage.ledger import Ledger

logger = logging.getLogger(__name__)

#: Seconds between two looks at the batches, and between two of the runner's steps.
SUPERVISED_EVERY_S = 1.0
_STEP_S = 0.25
#: Leases are renewed this many times in their life.
_RENEWALS = 3
_TIDIED_EVERY_S = 300.0
#: Chunks whose results wait for the store before no more chunks are taken.
_MOST_CLOSING = 64
#: Seconds between two attempts to finish a chunk or a batch, at first and at most.
_LEAST_RETRY_S, _MOST_RETRY_S = 0.5, 10.0


@dataclass(slots=True)
class _BatchHere:
    """A batch as this server runs it.

    Attributes:
        cause: why this server cannot go on with it; None while it can.
        progressed: whether a line has ended since the cause was last written.
    """

    entry: OpenBatch
    pace: BatchPace
    cause: Cause | None = None
    progressed: bool = False


class BatchRunner:
    """Runner of the batches of one server.

    Args:
        node: id of this server.
        lost_s: seconds after which another server takes over the chunks of a server that no longer renews its leases.
    """

    def __init__(
        self,
        database: Database,
        engine: Status,
        lines: LineRunner,
        finisher: Finisher,
        contents: FileContents,
        ledger: Ledger,
        *,
        node: str,
        lost_s: float,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._engine, self._lines, self._finisher = database, engine, lines, finisher
        self._contents, self._ledger, self._lost_s = contents, ledger, lost_s
        self._clock, self._monotonic = clock, monotonic
        self._supervisor = Supervisor(database, clock=clock)
        self._leases = ChunkLeases(database, node=node, lost_s=lost_s, clock=clock)
        self._turns = BatchTurns()
        self._batches: dict[str, _BatchHere] = {}
        self._runs: dict[tuple[str, int], ChunkRun] = {}
        self._failures: list[LineResult] = []
        self._flushing = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        self._finalizing: set[str] = set()
        self._resident = set[int | None]()
        engine.subscribe(self._on_event)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._left_at: float | None = None
        self._supervised_at = self._renewed_at = self._tidied_at = float("-inf")
        self.counts = Counts(monotonic())

    # Life cycle.

    async def open(self) -> None:
        """Give back what an earlier process of this server held. Its journal must have been shipped.

        Raises:
            RegistryUnavailable
        """
        await self._leases.release_all()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_forever(), name="batches")

    def leave(self) -> None:
        """Take no more chunks and start no more lines, as the server is about to end. Lines in flight go on."""
        if self._left_at is None:
            self._left_at = self._monotonic()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Give back all chunks.

        Args:
            grace_s: seconds after :meth:`leave` within which lines in flight may end; then they are aborted.
        """
        self.leave()
        deadline = (self._left_at or 0.0) + grace_s
        for run in list(self._runs.values()):
            await run.settled(max(0.0, deadline - self._monotonic()))
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for task in self._work:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work)
        try:
            for run in list(self._runs.values()):
                await self._drop(run)
            await self._flush()
            await self._ledger.ship()
            await self.open()
        except (RegistryUnavailable, OSError) as error:
            logger.warning("Chunks of batches are given back when their leases end: %s", error)

    @property
    def _leaving(self) -> bool:
        return self._left_at is not None

    @property
    def running(self) -> int:
        """Number of lines in flight."""
        return sum(run.running for run in self._runs.values())

    # The loop.

    async def _run_forever(self) -> None:
        while True:
            try:
                await self.step()
            except (RegistryUnavailable, StorageError, OSError) as error:
                logger.warning("Batches wait: %s", error)
                await asyncio.sleep(SUPERVISED_EVERY_S)
            except Exception:
                logger.exception("A step of the batch runner failed.")
                await asyncio.sleep(SUPERVISED_EVERY_S)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STEP_S):
                    await self._wake.wait()

    async def step(self) -> None:
        """Do all that is due now: look at the batches, renew leases, take chunks, start lines.

        Raises:
            RegistryUnavailable
        """
        now = self._monotonic()
        if now - self._renewed_at >= self._lost_s / _RENEWALS:
            await self._renew()
            self._renewed_at = now
        if now - self._supervised_at >= SUPERVISED_EVERY_S:
            self._supervised_at = now
            await self._supervise()
        if now - self._tidied_at >= _TIDIED_EVERY_S:
            self._tidied_at = now
            self._begin(self._tidy())
        await self._flush()
        if self._leaving:
            await self._give_back()
            return
        await self._claim()
        self._fill()

    async def _give_back(self) -> None:
        """Give back the chunks without lines in flight, so that another server takes them at once."""
        idle = [run for run in self._runs.values() if not run.running and not run.closing]
        if not idle:
            return
        await self._ledger.ship()
        for run in idle:
            await self._drop(run)
        await self._leases.release([run.key for run in idle])

    async def _supervise(self) -> None:
        found = {entry.batch.id: entry for entry in await self._supervisor.open_batches()}
        for batch_id, entry in found.items():
            here = self._batches.get(batch_id)
            if here is None:
                self._batches[batch_id] = _BatchHere(entry, BatchPace(entry.batch.options.width))
            else:
                here.entry = entry
        for batch_id in self._batches.keys() - found.keys():
            del self._batches[batch_id]
        self._turns.forget(found, {entry.slug for entry in found.values()})
        self.counts.note([entry.batch for entry in found.values()], self._clock(), self._monotonic())
        for here in list(self._batches.values()):
            await self._follow(here)

    async def _follow(self, here: _BatchHere) -> None:
        """Follow the state of a batch."""
        batch = here.entry.batch
        if (batch.state is BatchState.IN_PROGRESS and not here.entry.tenant_disabled) or batch.id in self._finalizing:
            shown = here.cause if here.cause or here.progressed else batch.blocked
            here.progressed = False
            await self._supervisor.block(batch, shown)
            return
        held = [run for run in self._runs.values() if run.chunk.batch_id == batch.id and not run.closing]
        if held:
            for run in held:
                await self._drop(run)
            await self._flush()
            await self._ledger.ship()
            await self._leases.release([run.key for run in held])
        if batch.state is not BatchState.IN_PROGRESS:
            await self._finalize_if_ended(here.entry)

    async def _finalize_if_ended(self, entry: OpenBatch) -> None:
        batch = entry.batch
        if self._leaving or any(run.chunk.batch_id == batch.id for run in self._runs.values()):
            return
        if await self._leases.is_run(batch.id):
            return
        self._finalizing.add(batch.id)
        self._begin(self._finalize(entry))

    async def _renew(self) -> None:
        held = await self._leases.renew(self._runs.keys())
        for here in list(self._batches.values()):
            batch = here.entry.batch
            if batch.options.width is not None and self._holds(batch.id):
                await self._leases.take_batch(batch.id)
        for run in [run for run in self._runs.values() if run.key not in held and not run.closing]:
            logger.warning("Another server has taken over the chunk %d of the batch %s.", run.key[1], run.key[0])
            await self._drop(run)

    async def _claim(self) -> None:
        """Take chunks until enough lines wait here."""
        window, able = self._window(), self._able()
        if not window or not able or sum(run.closing for run in self._runs.values()) >= _MOST_CLOSING:
            return
        if self._waiting(able) >= max(1, window // 2) and not self._idle(able):
            return
        free = await self._leases.free(able)
        while free:
            idle = self._idle(able)
            enough = self._waiting(able) >= window
            tenants = {batch_id: tenant for batch_id, tenant in able.items() if tenant[0] in idle} if enough else able
            in_hand = [run.in_hand for run in self._runs.values()]
            choice = self._turns.choose(free, in_hand, tenants=tenants, resident=self._resident)
            if choice is None:
                return
            chunk = await self._take(choice.batch_id, choice.version_id)
            free.remove(choice)
            if chunk is not None:
                if choice.count > 1:
                    free.append(replace(choice, first=chunk.number + 1, count=choice.count - 1))
                await self._open(chunk)

    async def _take(self, batch_id: str, version_id: int | None) -> Chunk | None:
        capped = self._batches[batch_id].entry.batch.options.width is not None
        if capped and not await self._leases.take_batch(batch_id):
            return None
        return await self._leases.take_chunk(batch_id, version_id)

    async def _open(self, chunk: Chunk) -> None:
        """Provide the local copy of the input file, and let the lines without a result wait."""
        run = ChunkRun(chunk)
        self._runs[run.key] = run
        here = self._batches[chunk.batch_id]
        try:
            async with self._database.read() as connection:
                done = await batch_results.lines_with_results(connection, chunk.batch_id, chunk.number)
            file = await self._finisher.input_of(here.entry.batch)
            await run.open(self._contents.open(file), {place.number for place in chunk.lines} - done)
        except (TenoraError, StorageError) as error:
            self._postpone(here, error)
            await self._drop(run)
            await self._leases.release([run.key])
            return
        self._close_if_ended(run)

    # Lines.

    def _fill(self) -> None:
        """Start lines while there is room."""
        if self._leaving or not (window := self._window()):
            return
        tenants, now = self._runnable(), self._monotonic()
        runs = [run for run in self._runs.values() if run.source is not None and not run.closing]
        in_flight = self._in_flight()
        total = in_flight.total()
        room = {batch_id: self._room(batch_id, in_flight, now) for batch_id in tenants}
        hands = {run.key: run.in_hand for run in runs}
        while total < window:
            choice = next_line(hands.values(), tenants=tenants, room=room)
            if choice is None:
                return
            key = next(key for key, hand in hands.items() if hand is choice)
            run = self._runs[key]
            self._start(run, run.waiting.popleft())
            hands[key], total = run.in_hand, total + 1
            room[choice.batch_id] -= 1

    def _start(self, run: ChunkRun, place: LinePlace) -> None:
        run.start(self._run_line(run, place), lambda: self._line_ended(run))

    def _line_ended(self, run: ChunkRun) -> None:
        if self._runs.get(run.key) is run:
            self._close_if_ended(run)
        self._fill()

    async def _run_line(self, run: ChunkRun, place: LinePlace) -> None:
        here = self._batches.get(run.chunk.batch_id)
        if here is None or run.source is None:
            return
        try:
            outcome = await self._lines.run(here.entry.caller, here.entry.batch.endpoint, run.chunk, place, run.source)
        except OSError as error:
            outcome = Later(error)
        match outcome:
            case Answered():
                self.counts.lines["answered"] += 1
                here.pace.ended()
                here.cause, here.progressed = None, True
            case Failed(result):
                self.counts.lines["failed"] += 1
                self._failures.append(result)
                here.pace.ended()
                here.cause, here.progressed = None, True
            case Later(cause):
                self.counts.lines["postponed"] += 1
                run.waiting.appendleft(place)
                self._postpone(here, cause)

    def _postpone(self, here: _BatchHere, error: Exception) -> None:
        # The line that could not run is still in its task.
        others = max(0, self._in_flight()[here.entry.batch.id] - 1)
        here.pace.refused(others, self._monotonic())
        if not others:
            here.cause = cause_of(error, self._clock()) or here.cause
        if not isinstance(error, TenoraError | StorageError):
            logger.warning("A line of the batch %s is tried again: %s", here.entry.batch.id, type(error).__name__)

    async def _flush(self) -> None:
        """Write the results of lines that used nothing. Those of concurrent calls are written when this returns."""
        async with self._flushing:
            failures, self._failures = self._failures, []
            if not failures:
                return
            try:
                async with self._database.write() as connection:
                    await batch_results.add_failures(connection, failures)
            except BaseException:
                self._failures = failures + self._failures
                raise

    # Ends of chunks and batches.

    def _close_if_ended(self, run: ChunkRun) -> None:
        if run.ended and not run.closing and not self._leaving:
            run.closing = True
            self._begin(self._close(run))
            self._wake.set()

    async def _close(self, run: ChunkRun) -> None:
        """Move the results of a chunk to the store. Runs until it is done."""

        async def close() -> None:
            await self._flush()
            await self._ledger.ship()
            missing = await self._finisher.finish_chunk(run.chunk)
            if missing:
                # Not expected: an answer that this server had was lost with its disk.
                logger.warning("%d lines of the batch %s run again.", len(missing), run.chunk.batch_id)
                run.waiting.extend(place for place in run.chunk.lines if place.number in missing)
                run.closing = False
                return
            await self._drop(run)
            if not self._holds(run.chunk.batch_id):
                self._supervised_at = float("-inf")  # it may have been the last one

        await self._insist(close, run.chunk.batch_id)
        self._wake.set()

    async def _finalize(self, entry: OpenBatch) -> None:
        batch = entry.batch

        async def finalize() -> None:
            if await self._finisher.finalize(batch, entry.slug):
                logger.info("The batch %s has ended.", batch.id)
                await self._tidy()

        try:
            await self._insist(finalize, batch.id)
        finally:
            self._finalizing.discard(batch.id)

    async def _tidy(self) -> None:
        """Delete what a server left that died after the end of a batch."""
        try:
            await self._finisher.tidy()
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
                if here := self._batches.get(batch_id):
                    here.cause = cause_of(error, self._clock()) or here.cause
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MOST_RETRY_S)
            else:
                if here := self._batches.get(batch_id):
                    here.cause, here.progressed = None, True
                return

    async def _drop(self, run: ChunkRun) -> None:
        """Let go of a chunk: abort its lines, and release the input file."""
        await run.abort()
        await run.close()
        if self._runs.get(run.key) is run:
            del self._runs[run.key]

    # Helpers.

    def _runnable(self) -> dict[str, tuple[str, float]]:
        """Return tenant and weight of the batches whose lines may run."""
        return {
            batch_id: (here.entry.slug, here.entry.caller.weight)
            for batch_id, here in self._batches.items()
            if here.entry.batch.state is BatchState.IN_PROGRESS and not here.entry.tenant_disabled
        }

    def _able(self) -> dict[str, tuple[str, float]]:
        """Return tenant and weight of the batches that are not held up while lines of them wait here."""
        now, in_flight = self._monotonic(), self._in_flight()
        held_up = {
            run.chunk.batch_id
            for run in self._runs.values()
            if run.waiting and not self._room(run.chunk.batch_id, in_flight, now)
        }
        return {batch_id: tenant for batch_id, tenant in self._runnable().items() if batch_id not in held_up}

    def _room(self, batch_id: str, in_flight: Mapping[str, int], now: float) -> int:
        here = self._batches.get(batch_id)
        return here.pace.room(in_flight.get(batch_id, 0), now) if here else 0

    def _in_flight(self) -> Counter[str]:
        """Count the lines in flight by batch."""
        counts = Counter[str]()
        for run in self._runs.values():
            counts[run.chunk.batch_id] += run.running
        return counts

    def _waiting(self, tenants: Mapping[str, tuple[str, float]]) -> int:
        """Count the lines of these batches that wait here."""
        return sum(len(run.waiting) for run in self._runs.values() if run.chunk.batch_id in tenants)

    def _idle(self, tenants: Mapping[str, tuple[str, float]]) -> set[str]:
        """Return the tenants of these batches of which no line is here."""
        busy = {
            tenants[run.chunk.batch_id][0]
            for run in self._runs.values()
            if run.chunk.batch_id in tenants and not run.closing
        }
        return {name for name, _ in tenants.values()} - busy

    def _holds(self, batch_id: str) -> bool:
        return any(run.chunk.batch_id == batch_id for run in self._runs.values())

    def _window(self) -> int:
        """Return how many lines may be in flight; 0 while no engine runs."""
        status = self._engine.status()
        return status.window if status.state is EngineState.READY else 0

    def _on_event(self, event: EngineEvent) -> None:
        """Follow which versions hold a slot. After a restart of the engine some may be wrong, which costs a load."""
        if event.kind == "load":
            self._resident.add(event.version_id)
        else:
            self._resident.discard(event.version_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: "asyncio.Task[None]") -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("Work on a batch failed.", exc_info=error)
