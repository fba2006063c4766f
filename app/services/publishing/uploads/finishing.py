"""Finishing of a resumable upload: join its parts into files and publish them as a version.

One server works on an upload at a time. It claims the upload's row and renews the claim by a heartbeat. When the
heartbeat stops, the next server that is asked to finish takes over. Every step is idempotent, so it does not matter
how far the dead server had come::

    claim the row -> join the parts -> fetch and hash -> publish (validate, store) -> done -> clean up
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import AdapterRejected, BlobNotFound, DigestMismatch, Reason, StorageError, ValidationFailed
from adapters.stores.base import BlobStore
from adapters.stores.files import file_digest
from app.database import uploads
from app.database.session import Database
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import AdapterQuarantined, Conflict, Forbidden, InvalidRequest, RegistryUnavailable, TenoraError
from app.domain.uploads import ARCHIVE, UploadFile, UploadSession, UploadState
from app.services.catalog.adapters import AdapterService
from app.services.catalog.options import read_options
from app.services.publishing.archives import unpack_upload
from app.services.publishing.publishing import Published, PublishingService
from app.services.publishing.refusals import RefusalService
from app.services.publishing.uploads.closing import end_upload, find_session, remove_staged, staged_file
from app.settings import LimitSettings
from app.support.spool import Spool, SpooledFile, Upload

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats, and the silence after which the server counts as dead.
HEARTBEAT_S = 10.0
SILENT = timedelta(seconds=60)

_SHOWN_PARTS = 20

#: Final errors: the same bytes and options would fail again.
_FINAL = (AdapterRejected, ValidationFailed, AdapterQuarantined, InvalidRequest, Forbidden)


class UploadFinisher:
    """Finishes uploads. ``tenant`` and ``adapter`` are slugs.

    Args:
        spool: spool for the whole files while they are validated.
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        spool: Spool,
        publishing: PublishingService,
        adapters: AdapterService,
        refusals: RefusalService,
        limits: LimitSettings,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._spool = database, store, spool
        self._publishing, self._adapters, self._refusals = publishing, adapters, refusals
        self._limits, self._clock = limits, clock

    async def finish(self, tenant: str, adapter: str, upload_id: str) -> Published:
        """Publish the upload as a version. Idempotent: a call after its end returns the same result.

        Raises:
            Conflict: parts are missing (listed); or the upload is being finished, was aborted, or has lost its bytes.
            AdapterRejected: with every reason; also if the files differ from those that were announced.
            Also every error of :meth:`PublishingService.publish`.
        """
        session = await find_session(self._database, tenant, adapter, upload_id)
        if session.state is UploadState.DONE and session.result is not None:
            return Published(await self._adapters.get_version(tenant, adapter, session.result), created=False)
        if session.state is UploadState.FAILED:
            raise _failure(session.error or {})
        await self._check_stored(tenant, session)
        claim = _Claim(self._database, await self._claimed(session), self._clock)
        try:
            async with claim.held(), self._spool.folder(tenant) as folder:
                published = await self._publish(tenant, session, folder)
        except BaseException as error:
            await self._settle_failure(tenant, claim, error)
            raise
        await claim.end(tenant, UploadState.DONE, result=published.version.number)
        await remove_staged(self._store.staging, session)
        return published

    async def _check_stored(self, tenant: str, session: UploadSession) -> None:
        """Abort the upload if the store has lost bytes that the sender did not have to send.

        Raises:
            Conflict: the store has lost them.
        """
        stored = [file for file in session.files.values() if file.stored and session.state is UploadState.OPEN]
        if await asyncio.to_thread(lambda: all(self._store.size(file.sha256) == file.size for file in stored)):
            return
        now, actor = self._clock(), session.created_by
        await end_upload(self._database, tenant, session, UploadState.ABORTED, at=now, actor=actor)
        raise Conflict(
            "The store has lost bytes of this version since the upload began. Begin a new upload.", param="upload"
        )

    async def _claimed(self, session: UploadSession) -> UploadSession:
        now = self._clock()
        if session.state is UploadState.ABORTED or (
            session.state is UploadState.OPEN and is_past(session.expires_at, now)
        ):
            raise Conflict("The upload was aborted or has expired. Begin a new upload.", param="upload")
        if session.state is UploadState.OPEN or session.updated_at < now - SILENT:
            async with self._database.write() as connection:
                if await uploads.move_upload(connection, session, UploadState.FINISHING, at=now):
                    return replace(session, state=UploadState.FINISHING, updated_at=now)
        raise Conflict("The upload is already being finished. Ask for its state.", param="upload")

    async def _publish(self, tenant: str, session: UploadSession, folder: Path) -> Published:
        async with self._refusals.recording(tenant, session.adapter, actor=session.created_by):
            files = await self._files(session, folder)
        options = read_options(
            session.options["raw"],
            self._limits,
            admin=session.options["admin"],
            source={"kind": "archive" if ARCHIVE in files else "upload"},
            uploaded_from=session.options["uploaded_from"],
        )
        if ARCHIVE in files:
            async with self._refusals.recording(tenant, session.adapter, actor=session.created_by):
                upload = await unpack_upload(files[ARCHIVE].path, folder, self._limits)
        else:
            upload = Upload(config=files[CONFIG_NAME], weights=files[WEIGHTS_NAME])
        return await self._publishing.publish(tenant, session.adapter, upload, options, actor=session.created_by)

    async def _files(self, session: UploadSession, folder: Path) -> dict[str, SpooledFile]:
        """Fetch the whole files into the spool and verify the announced digests."""
        try:
            await self._join(session)
            files = {name: await self._fetch(session, name, folder) for name in session.files}
        except BlobNotFound:
            raise AdapterRejected((_lost(session),)) from None
        wrong = [
            Reason("digest_mismatch", name, f"sha256 {files[name].digest}", f"sha256 {file.sha256}, as announced")
            for name, file in session.files.items()
            if files[name].digest != file.sha256
        ]
        if wrong:
            raise AdapterRejected(tuple(wrong))
        return files

    async def _join(self, session: UploadSession) -> None:
        missing = {}
        for name, file in session.files.items():
            if not file.stored:
                staged = staged_file(session, name)
                if gaps := await asyncio.to_thread(self._store.staging.complete, staged, file.part_sizes):
                    missing[name] = gaps
        if missing:
            listed = "; ".join(_gaps(name, session.files[name], numbers) for name, numbers in missing.items())
            raise Conflict(f"Parts are missing: {listed}. Send them, then finish the upload again.", param="parts")

    async def _fetch(self, session: UploadSession, name: str, folder: Path) -> SpooledFile:
        path, file = folder / name, session.files[name]
        if file.stored:
            await asyncio.to_thread(self._store.fetch, file.sha256, path)
            if await asyncio.to_thread(file_digest, path) != file.sha256:
                raise DigestMismatch(f"The store's bytes do not have the digest {file.sha256}.")
            return SpooledFile(path, file.sha256, file.size)
        staging, staged = self._store.staging, staged_file(session, name)
        digest = await asyncio.to_thread(staging.fetch, staged, path)
        return SpooledFile(path, digest, path.stat().st_size, adopt=partial(staging.adopt, staged, digest))

    async def _settle_failure(self, tenant: str, claim: "_Claim", error: BaseException) -> None:
        """Record a failure. A final error ends the upload, any other error reopens it."""
        try:
            if isinstance(error, _FINAL):
                await claim.end(tenant, UploadState.FAILED, error=_kept(error))
                await remove_staged(self._store.staging, claim.session)
            else:
                await claim.reopen()
        except (RegistryUnavailable, StorageError) as second:
            # The row keeps its state. Once its heartbeat is too old, the next call takes over.
            logger.warning("The failure of upload %s could not be recorded: %s", claim.session.id, second)


class _Claim:
    """Lease on an upload's row, renewed by a heartbeat. ``session`` is the row as last written."""

    def __init__(self, database: Database, session: UploadSession, clock: Clock) -> None:
        self._database, self._clock, self.session = database, clock, session

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        over = asyncio.Event()
        beating = asyncio.create_task(self._beat(over))
        try:
            yield
        finally:
            # Do not cancel the heartbeat: after a write with an unknown result, the next compare-and-set would fail.
            over.set()
            await beating

    async def end(
        self,
        tenant: str,
        state: UploadState,
        *,
        result: int | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the upload's final state. A lost claim is ignored: the server that took over reaches the same state."""
        now, actor = self._clock(), self.session.created_by
        await end_upload(self._database, tenant, self.session, state, at=now, actor=actor, result=result, error=error)

    async def reopen(self) -> None:
        async with self._database.write() as connection:
            await uploads.move_upload(connection, self.session, UploadState.OPEN, at=self._clock())

    async def _beat(self, over: asyncio.Event) -> None:
        while not await _happens(over, HEARTBEAT_S):
            now = self._clock()
            try:
                async with self._database.write() as connection:
                    if not await uploads.move_upload(connection, self.session, UploadState.FINISHING, at=now):
                        return
                    self.session = replace(self.session, updated_at=now)
            except RegistryUnavailable as error:
                logger.warning("The heartbeat of upload %s failed: %s", self.session.id, error)


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _gaps(name: str, file: UploadFile, numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN_PARTS])) + (", ..." if len(numbers) > _SHOWN_PARTS else "")
    return f"{len(numbers)} of {file.parts} parts of {name} ({shown})"


def _lost(session: UploadSession) -> Reason:
    return Reason("upload_lost", "upload", f"{session.id} without its bytes", "a new upload: push the files again")


def _kept(error: BaseException) -> dict[str, Any]:
    """Serialize a final error for the upload's row."""
    if isinstance(error, AdapterRejected):
        reasons: list[dict[str, Any]] = [asdict(reason) for reason in error.reasons]
    else:
        code, message = type(error).__name__, "The check of the upload exceeded its limits of time or memory."
        if isinstance(error, TenoraError):
            message = error.message
        reasons = [
            {"code": code, "field": "upload", "found": message, "allowed": "another upload", "sentence": message}
        ]
    return {"reasons": reasons}


def _failure(error: Mapping[str, Any]) -> AdapterRejected:
    return AdapterRejected(tuple(Reason.read(reason) for reason in error["reasons"]))
