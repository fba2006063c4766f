"""Batch runner: takes chunks of all batches under a lease, and runs their lines at low priority.

Each server has one. At most as many lines as the engine runs sequences are in flight at once, of all batches together.
A server that dies loses nothing but time: its chunks are free when their leases end, or when it starts again, and the
lines of which it had an answer are in its journal. See :mod:`app.services.usage.ledger`.

The database may be away: leases end, and other servers may take the chunks. Both then run the same lines, but one
result and one usage record of a line are kept.

The runner is the loop. Its parts:

- :mod:`app.services.batches.workload`: batches and chunks that are here,
- :mod:`app.services.batches.chunk_claims`: takes chunks,
- :mod:`app.services.batches.line_dispatch`: starts lines,
- :mod:`app.services.batches.completion`: closes chunks and batches,
- :mod:`app.services.batches.supervision`: expiry, revoked keys, disabled tenants.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from adapters.errors import StorageError
from app.database.session import Database
from app.domain.batches import BatchState
from app.domain.clock import Clock, utc_now
from app.domain.errors import RegistryUnavailable
from app.engine.port import Status
from app.services.batches.chunk_claims import ChunkClaims
from app.services.batches.chunk_leases import ChunkLeases
from app.services.batches.completion import Completion
from app.services.batches.counts import Counts
from app.services.batches.finishing import Finisher
from app.services.batches.line_dispatch import LineDispatcher
from app.services.batches.line_failures import LineFailures
from app.services.batches.line_runner import LineRunner
from app.services.batches.supervision import Supervisor
from app.services.batches.workload import BatchRun, Workload
from app.services.files.contents import FileContents
from app.services.usage.ledger import Ledger

logger = logging.getLogger(__name__)

#: Seconds between two looks at the batches, and between two of the runner's steps.
SUPERVISED_EVERY_S = 1.0
_STEP_S = 0.25
#: Leases are renewed this many times in their life.
_RENEWALS = 3
_TIDIED_EVERY_S = 300.0


class BatchRunner:
    """Runner of the batches of one server.

    Args:
        node: id of this server.
        lost_s: seconds after which another server takes over the chunks of a server that no longer renews its leases.
        window_share: part of the engine's window for lines while other requests come.

    Attributes:
        workload: batches and chunks that are here.
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
        window_share: float,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._lost_s, self._clock, self._monotonic = ledger, lost_s, clock, monotonic
        self.workload, self.counts = Workload(clock, monotonic), Counts(monotonic())
        self._supervisor = Supervisor(database, clock=clock)
        self._leases = ChunkLeases(database, node=node, lost_s=lost_s, clock=clock)
        self._failures = LineFailures(database)
        self._completion = Completion(self.workload, self._failures, ledger, finisher, advanced=self._chunk_advanced)
        self._dispatcher = LineDispatcher(
            self.workload, engine, lines, self._failures, self._completion, self.counts, share=window_share
        )
        self._claims = ChunkClaims(self.workload, database, engine, self._leases, finisher, contents, self._completion)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._left_at: float | None = None
        self._supervised_at = self._renewed_at = self._tidied_at = float("-inf")

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
            self._left_at, self.workload.leaving = self._monotonic(), True

    async def stop(self, grace_s: float = 0.0) -> None:
        """Give back all chunks.

        Args:
            grace_s: seconds after :meth:`leave` within which lines in flight may end; then they are aborted.
        """
        self.leave()
        deadline = (self._left_at or 0.0) + grace_s
        for chunk in list(self.workload.chunks.values()):
            await chunk.settled(max(0.0, deadline - self._monotonic()))
        await self.halt()
        try:
            for chunk in list(self.workload.chunks.values()):
                await self.workload.drop(chunk)
            await self._failures.flush()
            await self._ledger.ship()
            await self.open()
        except (RegistryUnavailable, OSError) as error:
            logger.warning("Chunks of batches are given back when their leases end: %s", error)

    async def halt(self) -> None:
        """Stop the loop and all work on ends of chunks and batches. Lines in flight and leases stay."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._completion.stop()

    @property
    def running(self) -> int:
        """Number of lines in flight."""
        return self.workload.running

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
            await self.supervise()
        if now - self._tidied_at >= _TIDIED_EVERY_S:
            self._tidied_at = now
            self._completion.tidy()
        await self._failures.flush()
        if self.workload.leaving:
            await self._give_back()
            return
        await self._claims.take()
        self._dispatcher.fill()

    async def supervise(self) -> None:
        """Look at all open batches, and follow their states.

        Raises:
            RegistryUnavailable
        """
        survey = await self._supervisor.survey()
        self.workload.follow(survey.worked_on)
        self._claims.forget_others()
        self.counts.note(survey.rows, self._clock(), self._monotonic())
        for batch in list(self.workload.batches.values()):
            await self._follow(batch)

    async def _follow(self, run: BatchRun) -> None:
        """Follow the state of a batch."""
        batch = run.entry.batch
        if run.runnable or self._completion.finalizes(batch.id):
            shown = run.cause if run.cause or run.progressed else batch.blocked
            run.progressed = False
            await self._supervisor.block(batch, shown)
            return
        held = [chunk for chunk in self.workload.of_batch(batch.id) if not chunk.closing]
        if held:
            for chunk in held:
                await self.workload.drop(chunk)
            await self._failures.flush()
            await self._ledger.ship()
            await self._leases.release([chunk.key for chunk in held])
        if batch.state is not BatchState.IN_PROGRESS:
            await self._finalize_if_ended(run)

    async def _finalize_if_ended(self, run: BatchRun) -> None:
        batch = run.entry.batch
        if self.workload.leaving or self.workload.of_batch(batch.id):
            return
        if not await self._leases.is_run(batch.id):
            self._completion.finalize(run.entry)

    def _chunk_advanced(self, last: bool) -> None:
        """Take a step at once, and look at the batches first if it was the last chunk of its batch here."""
        if last:
            self._supervised_at = float("-inf")
        self._wake.set()

    async def _give_back(self) -> None:
        """Give back the chunks without lines in flight, so that another server takes them at once."""
        idle = [chunk for chunk in self.workload.chunks.values() if not chunk.running and not chunk.closing]
        if not idle:
            return
        await self._ledger.ship()
        for chunk in idle:
            await self.workload.drop(chunk)
        await self._leases.release([chunk.key for chunk in idle])

    async def _renew(self) -> None:
        held = await self._leases.renew(self.workload.chunks.keys())
        for run in list(self.workload.batches.values()):
            batch = run.entry.batch
            if batch.options.width is not None and self.workload.of_batch(batch.id):
                await self._leases.take_batch(batch.id)
        for chunk in [one for one in self.workload.chunks.values() if one.key not in held and not one.closing]:
            logger.warning("Another server has taken over the chunk %d of the batch %s.", chunk.key[1], chunk.key[0])
            await self.workload.drop(chunk)
