"""Contents of files: compressed blobs in the store, and uncompressed copies on this node.

The blob is stored first and the row is committed second, as for versions. A crash in between leaves an unused blob,
which garbage collection removes.
"""

import asyncio
import logging
import shutil
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from adapters.errors import BlobNotFound, DigestMismatch, StorageError
from adapters.stores.base import BlobStore
from adapters.stores.files import disk_errors
from app.database import audit, files
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, FileLost, NotFound, RegistryUnavailable, TenoraError
from app.domain.files import Purpose, StoredFile
from app.services.files.compression import Compressed, blocks, compress, decompress
from app.services.files.local_copies import LocalCopies
from app.services.publishing.blobs import BlobService

logger = logging.getLogger(__name__)

_ACTOR = "engine"
#: A lost file is reported at most once in this time.
_QUIET = timedelta(hours=1)


class FileContents:
    """Contents of files on this node, and results of chunks.

    Args:
        root: folder for copies and temporary files, which holds nothing else.
        most_bytes: maximum size of the copies, in bytes.

    Raises (every method that is a coroutine or a context manager):
        RegistryUnavailable, StoreUnavailable, DiskFull
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        blobs: BlobService,
        root: Path,
        *,
        most_bytes: int,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._blobs, self._clock = database, store, blobs, clock
        self._scratch = root / "scratch"
        self.copies = LocalCopies(root / "copies", most_bytes=most_bytes, fetch=self._fetch)
        self._lost: dict[str, tuple[datetime, bool]] = {}

    def start(self) -> None:
        """Create empty folders; files of an earlier process are removed. Blocks."""
        self.copies.open()
        with disk_errors("keep copies of files"):
            if self._scratch.exists():
                shutil.rmtree(self._scratch)
            self._scratch.mkdir(mode=0o700)

    def lost(self) -> dict[str, int]:
        """Count the files with missing bytes, and those with damaged bytes, as far as this node knows."""
        missing = sum(is_missing for _, is_missing in self._lost.values())
        return {"missing": missing, "damaged": len(self._lost) - missing}

    def open(self, file: StoredFile) -> AbstractAsyncContextManager[Path]:
        """Provide the path of a local, uncompressed copy, which stays as long as the block runs. Do not write to it.

        Concurrent users share one copy. It is fetched at first use, and kept some minutes after its last user.

        Raises:
            NotFound: the file has been deleted since its row was read.
            FileLost: the store has lost the bytes.
            Busy: copies in use leave no room for this one; try again later.
        """
        return self.copies.use(file)

    async def drop(self, file_id: str) -> bool:
        """Remove the local copy of a deleted file. Returns False while it is used."""
        if not await self.copies.drop(file_id):
            return False
        self._lost.pop(file_id, None)
        return True

    @asynccontextmanager
    async def scratch(self) -> AsyncGenerator[Path]:
        """Provide a new folder for temporary files, which is removed when the block ends."""
        path = self._scratch / uuid.uuid4().hex
        with disk_errors("write a file"):
            await asyncio.to_thread(path.mkdir, mode=0o700)
        try:
            yield path
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))

    async def put(
        self, path: Path, *, tenant_id: int, purpose: Purpose, filename: str, created_by: str, expires_at: datetime
    ) -> StoredFile:
        """Store a content and commit its row. No quota is checked.

        Args:
            filename: name to show, cleaned by :func:`app.domain.files.shown_name`.
            created_by: id of a key.
        """
        async with (
            self.stored(
                path,
                tenant_id=tenant_id,
                purpose=purpose,
                filename=filename,
                created_by=created_by,
                expires_at=expires_at,
            ) as file,
            self._database.write() as connection,
        ):
            await files.insert_file(connection, file)
        return file

    @asynccontextmanager
    async def stored(
        self,
        path: Path,
        *,
        tenant_id: int,
        purpose: Purpose,
        filename: str,
        created_by: str,
        expires_at: datetime,
        created_at: datetime | None = None,
    ) -> AsyncGenerator[StoredFile]:
        """Store a content and provide its file. The block commits the row with ``insert_file``.

        Args:
            created_at: time from which the caller counts the lifetime; None: now.

        If the block raises an error that says that no row was committed, the blob is deleted. At the end of the block
        the blob is checked: a garbage collection that listed it before the row was committed may have deleted it, and
        then it is stored again.
        """
        identity, created_at = f"file-{uuid.uuid4().hex}", created_at or self._clock()
        async with self.stored_blob(path, identity) as content:
            yield StoredFile(
                id=identity,
                tenant_id=tenant_id,
                purpose=purpose,
                filename=filename,
                bytes=content.bytes,
                sha256=content.sha256,
                digest=content.digest,
                created_at=created_at,
                created_by=created_by,
                expires_at=expires_at,
            )

    @asynccontextmanager
    async def stored_blob(self, path: Path, identity: str) -> AsyncGenerator[Compressed]:
        """Store a content as the blob of a file or a part with this id. The block commits its row; see ``stored``."""
        async with self.scratch() as folder:
            blob = folder / "blob"
            content = await asyncio.to_thread(self._put, blocks(path), blob, identity)
            try:
                yield content
            except TenoraError as error:
                if not isinstance(error, RegistryUnavailable):
                    await self._discard(content.digest)
                raise
            await self._blobs.settled([content.digest])
            await asyncio.to_thread(self._store.put, content.digest, blob)

    async def join(self, digests: Sequence[str], target: Path) -> None:
        """Append the contents of blobs to a file, in this order.

        Raises:
            FileLost: the store has lost one of them.
        """
        try:
            for digest in digests:
                await asyncio.to_thread(self._fetch_blob, digest, target)
        except (BlobNotFound, DigestMismatch) as error:
            logger.warning("Bytes of an upload: %s", error)
            raise FileLost("The store has lost bytes of this upload. Begin a new upload.") from error

    @asynccontextmanager
    async def stored_segment(self, lines: Iterable[str]) -> AsyncGenerator[str]:
        """Store the results of one chunk, one line of JSON each, and provide the digest of the blob.

        The block commits a chunk that refers to it, or raises Conflict to have the blob deleted. Until the commit,
        garbage collection regards the blob as unused.
        """
        content = (line.encode() + b"\n" for line in lines)
        async with self.scratch() as folder:
            name = f"segment-{uuid.uuid4().hex}"
            digest = (await asyncio.to_thread(self._put, content, folder / "blob", name)).digest
        try:
            yield digest
        except Conflict:
            await self._discard(digest)
            raise

    async def read_segment(self, digest: str, target: Path) -> None:
        """Write the lines of a segment to a new file.

        Raises:
            FileLost: the store has lost the blob.
        """
        try:
            await asyncio.to_thread(self._fetch_blob, digest, target)
        except (BlobNotFound, DigestMismatch) as error:
            logger.warning("Results of a batch: %s", error)
            raise FileLost("The store has lost results of this batch.") from error

    async def _discard(self, digest: str) -> None:
        """Delete a blob without a row. If the store does not answer, garbage collection deletes it later."""
        try:
            await asyncio.to_thread(self._store.delete, digest)
        except StorageError as error:
            logger.warning("The unused blob %s could not be deleted: %s", digest, error)

    def _put(self, content: Iterable[bytes], blob: Path, comment: str) -> Compressed:
        compressed = compress(content, blob, comment=comment)
        self._store.put(compressed.digest, blob)
        return compressed

    async def _fetch(self, file: StoredFile, path: Path) -> None:
        async with self._database.read() as connection:
            if not await files.is_live(connection, file.id):
                raise NotFound(f"There is no file {file.id!r}.", param="file")
        try:
            await asyncio.to_thread(self._fetch_blob, file.digest, path)
        except (BlobNotFound, DigestMismatch) as error:
            await self._report(file, missing=isinstance(error, BlobNotFound))
            raise FileLost(f"The store has lost the bytes of {file.id}. Upload the file again.") from error
        self._lost.pop(file.id, None)

    def _fetch_blob(self, digest: str, target: Path) -> None:
        blob = target.with_name(f"{target.name}.{uuid.uuid4().hex}.gz")
        try:
            self._store.fetch(digest, blob)
            decompress(blob, target, digest=digest)
        finally:
            blob.unlink(missing_ok=True)

    async def _report(self, file: StoredFile, *, missing: bool) -> None:
        now = self._clock()
        known = self._lost.get(file.id)
        if known and known[0] > now - _QUIET:
            return
        async with self._database.write() as connection:
            if not await files.is_live(connection, file.id):
                return
            await audit.record(
                connection,
                at=now,
                actor=_ACTOR,
                action="file.bytes_missing" if missing else "file.bytes_damaged",
                tenant=await files.owner_of(connection, file.id),
                subject=file.id,
                after={"digest": file.digest},
            )
        self._lost[file.id] = (now, missing)
        logger.error("The store has %s the bytes of %s.", "lost" if missing else "damaged", file.id)
