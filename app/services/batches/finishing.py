"""End of chunks and batches: results become a blob, and the blobs of a batch become its files.

Crash-safe order, for a chunk and for a batch alike: bytes into the store, then a row that refers to them. A crash in
between leaves unused bytes, and the step is repeated::

    chunk    results in the database -> blob -> (done, results deleted)
    batch    blobs -> output and error file -> (final state, files) -> blobs deleted -> rows of chunks deleted
"""

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

from adapters.stores.base import BlobStore
from app.database import batch_claims, batch_results, batches, files
from app.database.session import Database
from app.domain.batches import Batch, BatchState, Chunk, LinePlace, LineResult
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, FileLost, NotFound
from app.domain.files import Purpose, StoredFile
from app.services.batches import line_results
from app.services.batches.line_results import BATCH_CANCELLED, BATCH_EXPIRED, LineIdentity
from app.services.batches.line_runner import custom_id_of, read_line
from app.services.common.batch_states import change_state
from app.services.files.contents import FileContents

logger = logging.getLogger(__name__)

#: Segments that are merged at once, each an open file.
_MERGED_AT_ONCE = 64
#: Chunks that are closed, or whose blobs are deleted, per step.
_STEP = 64

_CANCELLED = "The batch was cancelled before this line ran."
_EXPIRED = "The batch's completion window ended before this line ran."


class Finisher:
    """Finishes chunks and batches on this server.

    Raises (every method):
        RegistryUnavailable
        adapters.errors.StorageError: the store or this server's disk cannot be used. A later call continues.

    Args:
        node: id of this server.
        lease_s: seconds for which this server holds a batch or a chunk that it finishes.
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        contents: FileContents,
        *,
        node: str,
        lease_s: float,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._contents = database, store, contents
        self._node, self._lease_s, self._clock = node, lease_s, clock

    async def finish_chunk(self, chunk: Chunk) -> set[int]:
        """Move the results of a chunk to a blob, if all its lines have one.

        Returns:
            Numbers of the lines without a result; empty if the chunk is done, here or by another server.
        """
        async with self._database.read() as connection:
            results = await batch_results.results_of(connection, chunk.batch_id, chunk.number)
        missing = {line.number for line in chunk.lines} - {result.line for result in results}
        if missing and not await self._is_done(chunk):
            return missing
        if not missing:
            with suppress(Conflict):
                await self._move_results(chunk, results)
        return set()

    async def _move_results(self, chunk: Chunk, results: Sequence[LineResult]) -> None:
        """Replace the results of a chunk by a blob.

        Raises:
            Conflict: another server has done it, or the batch has ended.
        """
        async with (
            self._contents.stored_segment(map(_segment_line, results)) as segment,
            self._database.write() as connection,
        ):
            if not await batch_results.finish_chunk(connection, chunk.batch_id, chunk.number, segment):
                raise Conflict(f"The chunk {chunk.number} of the batch {chunk.batch_id} is done.")

    async def finalize(self, batch: Batch, tenant: str) -> bool:
        """Finish a batch whose lines have ended: give each remaining line its result, write the files, end the batch.

        Args:
            tenant: slug of its tenant.

        Returns:
            False if another server works on it.
        """
        if not await self.lease(batch):
            return False
        await self._close_chunks(batch)
        async with self._contents.scratch() as folder:
            output, errors = await self._merged(batch, folder)
            try:
                await self._end(batch, tenant, output, errors)
            except Conflict:
                return False
        return True

    async def _end(self, batch: Batch, tenant: str, output: Path, errors: Path) -> None:
        """Store the files of a batch, and commit them together with its final state.

        Raises:
            Conflict: another server has ended it.
        """
        state = final_state(batch)
        async with AsyncExitStack() as stack:
            stored = {
                kind: await stack.enter_async_context(self._stored(batch, path, kind))
                for kind, path in (("output", output), ("error", errors))
            }
            values: dict[str, object] = {"blocked": None}
            connection = await stack.enter_async_context(self._database.write())
            for kind, file in stored.items():
                if file is not None:
                    await files.insert_file(connection, file)
                    values[f"{kind}_file_id"] = file.id
            # An expired batch has the time of its end already.
            at = batch.times.get(state, self._clock())
            if not await change_state(connection, batch, state, tenant=tenant, at=at, node=self._node, values=values):
                raise Conflict(f"The batch {batch.id} was ended by another server.")

    async def lease(self, batch: Batch) -> bool:
        """Take or renew this server's lease on a batch; False if another server holds it."""
        now = self._clock()
        until = now + timedelta(seconds=self._lease_s)
        async with self._database.write() as connection:
            return await batches.lease(connection, batch.id, batch.state, node=self._node, now=now, until=until)

    async def tidy(self, batch_id: str | None = None) -> None:
        """Delete the blobs and rows of chunks of batches that have ended.

        Args:
            batch_id: only of this batch, which costs less; None: of all.
        """
        while True:
            async with self._database.read() as connection:
                chunks = await batch_claims.ended_with_segments(connection, batch_id, limit=_STEP)
            if not chunks:
                return
            for _, _, segment in chunks:
                if segment is not None:
                    await asyncio.to_thread(self._store.delete, segment)
            async with self._database.write() as connection:
                await batch_claims.forget_chunks(connection, [(batch_id, number) for batch_id, number, _ in chunks])

    async def _is_done(self, chunk: Chunk) -> bool:
        async with self._database.read() as connection:
            return await batch_claims.is_done(connection, chunk.batch_id, chunk.number)

    async def _close_chunks(self, batch: Batch) -> None:
        """Give the lines of a cancelled or expired batch that did not run their results."""
        while True:
            async with self._database.read() as connection:
                chunks = await batch_claims.unfinished_chunks(connection, batch.id, limit=_STEP)
            if not chunks:
                return
            async with self._source(batch) as source:
                for chunk in chunks:
                    await self._close(batch, chunk, source)
            await self.lease(batch)

    @asynccontextmanager
    async def _source(self, batch: Batch) -> AsyncGenerator[Path | None]:
        """Provide the local copy of the input file; None if it is lost, so that the batch can end without it."""
        async with AsyncExitStack() as stack:
            try:
                source = await stack.enter_async_context(self._contents.open(await self.input_of(batch)))
            except (NotFound, FileLost) as error:
                logger.warning("The input file of the batch %s cannot be read: %s", batch.id, error)
                source = None
            yield source

    async def _close(self, batch: Batch, chunk: Chunk, source: Path | None) -> None:
        async with self._database.read() as connection:
            have = await batch_results.lines_with_results(connection, batch.id, chunk.number)
        code, message = (
            (BATCH_CANCELLED, _CANCELLED) if batch.state is BatchState.CANCELLING else (BATCH_EXPIRED, _EXPIRED)
        )

        def missing() -> list[LineResult]:
            return [
                line_results.failed(LineIdentity(chunk, place.number, _custom_id(source, place)), code, message)
                for place in chunk.lines
                if place.number not in have
            ]

        results = await asyncio.to_thread(missing)
        async with self._database.write() as connection:
            await batch_results.add_failures(connection, results)
        await self.finish_chunk(chunk)

    async def input_of(self, batch: Batch) -> StoredFile:
        """Return the input file of a batch.

        Raises:
            NotFound: it no longer exists.
        """
        async with self._database.read() as connection:
            file = await files.find_file(connection, batch.tenant_id, batch.input_file_id)
        if file is None:
            raise NotFound(f"The input file of the batch {batch.id} no longer exists.")
        return file

    async def _merged(self, batch: Batch, folder: Path) -> tuple[Path, Path]:
        """Merge the segments of a batch into the contents of its output file and its error file."""
        async with self._database.read() as connection:
            segments = [digest for _, digest in await batch_claims.segments_of(connection, batch.id)]
        runs = [folder / f"{number}.segment" for number in range(len(segments))]
        for number, (digest, path) in enumerate(zip(segments, runs, strict=True)):
            await self._contents.read_segment(digest, path)
            if number % _STEP == 0:
                await self.lease(batch)
        output, errors = folder / "output", folder / "errors"
        await asyncio.to_thread(_merge, runs, output, errors)
        await self.lease(batch)
        return output, errors

    @asynccontextmanager
    async def _stored(self, batch: Batch, path: Path, kind: str) -> AsyncGenerator[StoredFile | None]:
        """Store a file of a batch; None for a file without lines. The block commits its row."""
        if not (await asyncio.to_thread(path.stat)).st_size:
            yield None
            return
        async with self._contents.stored(
            path,
            tenant_id=batch.tenant_id,
            purpose=Purpose.BATCH_OUTPUT,
            filename=f"{batch.id}_{kind}.jsonl",
            created_by=batch.created_by,
            expires_at=self._clock() + timedelta(seconds=batch.output_lifetime_s),
        ) as file:
            yield file


def final_state(batch: Batch) -> BatchState:
    """Return the state in which a batch ends that is being cancelled or finalized."""
    if batch.state is BatchState.CANCELLING:
        return BatchState.CANCELLED
    return BatchState.EXPIRED if BatchState.EXPIRED in batch.times else BatchState.COMPLETED


def _custom_id(source: Path | None, place: LinePlace) -> str | None:
    return None if source is None else custom_id_of(read_line(source, place))


def _segment_line(result: LineResult) -> str:
    """Number, file and content of a result on one line; numbers have a fixed width."""
    return f"{result.line:09d} {'o' if result.succeeded else 'e'} {result.content}"


_NUMBER = slice(0, 9)
_FILE = 10
_CONTENT = slice(12, None)


def _merge(runs: list[Path], output: Path, errors: Path) -> None:
    """Merge sorted segments into the lines of two files, with few open files and flat memory. Blocks."""
    while len(runs) > _MERGED_AT_ONCE:
        some, runs = runs[:_MERGED_AT_ONCE], runs[_MERGED_AT_ONCE:]
        merged = some[0].with_name(f"{some[0].name}+")
        with merged.open("w", encoding="utf-8", newline="\n") as target:
            _each_line(some, target.write)
        for path in some:
            path.unlink()
        runs.append(merged)
    with (
        output.open("w", encoding="utf-8", newline="\n") as answers,
        errors.open("w", encoding="utf-8", newline="\n") as failures,
    ):
        _each_line(runs, lambda line: (answers if line[_FILE] == "o" else failures).write(line[_CONTENT]))


def _each_line(runs: Iterable[Path], write: Callable[[str], object]) -> None:
    with ExitStack() as stack:
        opened: list[Iterator[str]] = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in runs]
        for line in heapq.merge(*opened, key=lambda line: line[_NUMBER]):
            write(line)
