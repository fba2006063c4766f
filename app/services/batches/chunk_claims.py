"""Claims of chunks: take free chunks of open batches under a lease, and open their input files."""

from dataclasses import replace

from adapters.errors import StorageError
from app.database import batch_results
from app.database.session import Database
from app.domain.batches import Chunk
from app.domain.errors import TenoraError
from app.engine.port import EngineEvent, Status
from app.scheduling.batch_turns import BatchTurns
from app.services.batches.chunk_leases import ChunkLeases
from app.services.batches.chunk_runs import ChunkRun
from app.services.batches.completion import Completion
from app.services.batches.finishing import Finisher
from app.services.batches.line_dispatch import line_window
from app.services.batches.workload import Workload
from app.services.files.contents import FileContents

#: Chunks whose results wait for the store before no more chunks are taken.
_MOST_CLOSING = 64


class ChunkClaims:
    """Takes chunks until enough lines wait on this server."""

    def __init__(
        self,
        workload: Workload,
        database: Database,
        engine: Status,
        leases: ChunkLeases,
        finisher: Finisher,
        contents: FileContents,
        completion: Completion,
    ) -> None:
        self._workload, self._database, self._engine, self._leases = workload, database, engine, leases
        self._finisher, self._contents, self._completion = finisher, contents, completion
        self._turns = BatchTurns()
        self._resident = set[int | None]()
        engine.subscribe(self._on_event)

    def forget_others(self) -> None:
        """Forget the turns of batches and tenants that have nothing open."""
        entries = [batch.entry for batch in self._workload.batches.values()]
        self._turns.forget({entry.batch.id for entry in entries}, {entry.slug for entry in entries})

    async def take(self) -> None:
        """Take chunks until enough lines wait here.

        Raises:
            RegistryUnavailable
        """
        window, able = line_window(self._engine), self._workload.able()
        if not window:
            # The engine may have died, and its slots are empty then.
            self._resident.clear()
            return
        if not able or sum(chunk.closing for chunk in self._workload.chunks.values()) >= _MOST_CLOSING:
            return
        if self._workload.waiting(able) >= max(1, window // 2) and not self._workload.idle(able):
            return
        await self._take_of(able, window)

    async def _take_of(self, able: dict[str, tuple[str, float]], window: int) -> None:
        free = await self._leases.free(able)
        while free:
            idle = self._workload.idle(able)
            enough = self._workload.waiting(able) >= window
            tenants = {batch_id: tenant for batch_id, tenant in able.items() if tenant[0] in idle} if enough else able
            in_hand = [chunk.in_hand for chunk in self._workload.chunks.values()]
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
        capped = self._workload.batches[batch_id].entry.batch.options.width is not None
        if capped and not await self._leases.take_batch(batch_id):
            return None
        return await self._leases.take_chunk(batch_id, version_id)

    async def _open(self, chunk: Chunk) -> None:
        """Provide the local copy of the input file, and let the lines without a result wait."""
        run = ChunkRun(chunk)
        self._workload.chunks[run.key] = run
        batch = self._workload.batches[chunk.batch_id]
        try:
            async with self._database.read() as connection:
                done = await batch_results.lines_with_results(connection, chunk.batch_id, chunk.number)
            file = await self._finisher.input_of(batch.entry.batch)
            await run.open(self._contents.open(file), {place.number for place in chunk.lines} - done)
        except (TenoraError, StorageError) as error:
            self._workload.postpone(batch, error, self._workload.in_flight()[chunk.batch_id])
            await self._workload.drop(run)
            await self._leases.release([run.key])
            return
        self._completion.close_if_ended(run)

    def _on_event(self, event: EngineEvent) -> None:
        """Follow which versions hold a slot."""
        if event.kind == "load":
            self._resident.add(event.version_id)
        else:
            self._resident.discard(event.version_id)
