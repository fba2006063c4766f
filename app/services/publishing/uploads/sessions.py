"""Resumable uploads: begin an upload, send its parts, inspect it, abort it.

:mod:`app.services.publishing.uploads.finishing` finishes it. The store's staging area knows which parts have arrived.
The registry holds what the sender announced.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import BlobNotFound
from adapters.identity import content_digest
from adapters.stores.base import BlobStore
from adapters.stores.staging import PartUrl, Staged
from app.database import adapters, audit, uploads, versions
from app.database.session import Database
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Busy, Conflict, InvalidRequest, NotFound
from app.domain.uploads import UploadFile, UploadSession, UploadState
from app.services.common.lookups import tenant_or_404
from app.services.publishing.uploads.closing import end_upload, find_session, remove_staged, staged_file
from app.services.publishing.uploads.validation import Announced, checked_files, size_of_part
from app.settings import LimitSettings
from app.support.spool import SpooledFile

URL_LIFETIME_S = 900
MAX_URLS = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """An upload and its received parts.

    Attributes:
        received: file name -> numbers of the parts that have arrived.
        direct: whether parts are sent directly to the store.
    """

    session: UploadSession
    received: Mapping[str, Sequence[int]]
    direct: bool


class UploadService:
    """Use cases of resumable uploads. ``tenant`` and ``adapter`` are slugs, and ``actor`` is a key's id.

    Every method can raise NotFound and RegistryUnavailable.
    """

    def __init__(self, database: Database, store: BlobStore, limits: LimitSettings, *, clock: Clock = utc_now) -> None:
        self._database, self._store, self._limits, self._clock = database, store, limits, clock
        self._staging = store.staging

    async def begin(
        self,
        tenant: str,
        adapter: str,
        files: Mapping[str, Announced],
        options: Mapping[str, object],
        *,
        part_bytes: int | None,
        actor: str,
    ) -> Progress:
        """Begin an upload. The caller has checked the target and the options.

        Args:
            files: the two files that PEFT saves, or ``archive``.
            options: see :class:`app.domain.uploads.UploadSession`.
            part_bytes: size of a part in bytes; None: the server chooses.

        Raises:
            InvalidRequest, TooLarge: the announced files are invalid.
            Busy: the tenant has reached its limit of live uploads.
            StoreUnavailable, DiskFull
        """
        planned = checked_files(files, part_bytes, self._staging.least_part_bytes, self._limits)
        tenant_id, registered = await self._look_up(tenant, adapter, planned)
        # If the store has lost the bytes of a version, sending them again repairs it.
        is_stored = registered and await asyncio.to_thread(self._are_stored, planned)
        upload_id, now = uuid.uuid4().hex, self._clock()
        session = UploadSession(
            id=upload_id,
            tenant_id=tenant_id,
            adapter=adapter,
            state=UploadState.OPEN,
            files=await self._begin_files(upload_id, planned, stored=is_stored),
            options=options,
            created_at=now,
            updated_at=now,
            expires_at=now + timedelta(hours=self._limits.upload_hours),
            created_by=actor,
        )
        await self._register(tenant, session)
        return await self._progress(session)

    async def show(self, tenant: str, adapter: str, upload_id: str) -> Progress:
        """Return an upload in any state, with its progress.

        Raises:
            StoreUnavailable
        """
        return await self._progress(await self.find(tenant, adapter, upload_id))

    async def list_live(self, tenant: str, adapter: str) -> list[UploadSession]:
        """List the live uploads to an adapter, newest first.

        Raises:
            NotFound: no such tenant.
        """
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            return await uploads.live_uploads(connection, owner.id, adapter)

    async def find(self, tenant: str, adapter: str, upload_id: str) -> UploadSession:
        """Return the registry's row of an upload."""
        return await find_session(self._database, tenant, adapter, upload_id)

    async def part_size(self, tenant: str, adapter: str, upload_id: str, file: str, number: int) -> int:
        """Return the size of a part in bytes, if it may be sent now.

        Raises:
            NotFound: no such upload, or no such file in it.
            InvalidRequest: no such part.
            Conflict: the upload accepts no more parts.
        """
        _, announced = await self._open_file(tenant, adapter, upload_id, file)
        return size_of_part(file, announced, number)

    async def put_part(
        self, tenant: str, adapter: str, upload_id: str, file: str, number: int, part: SpooledFile
    ) -> None:
        """Store a part whose size and digest have been verified.

        Raises:
            NotFound, InvalidRequest, Conflict: see ``part_size``.
            StoreUnavailable, DiskFull
        """
        staged, announced = await self._open_file(tenant, adapter, upload_id, file)
        size_of_part(file, announced, number)
        try:
            await asyncio.to_thread(self._staging.put_part, staged, number, part.path, part.digest)
        except BlobNotFound:
            # The upload ended while the part was in transit.
            raise Conflict(f"The upload {upload_id} has ended. Begin a new upload.", param="upload") from None

    async def part_urls(
        self, tenant: str, adapter: str, upload_id: str, file: str, parts: Mapping[int, str]
    ) -> dict[int, PartUrl]:
        """Presign URLs that send parts directly to the store.

        Args:
            parts: part number -> SHA-256 (hex) of the part.

        Returns:
            Part number -> URL and headers.

        Raises:
            NotFound, InvalidRequest: see ``part_size``; also too many parts at once.
            Conflict: see ``part_size``; also if the store takes parts through the server only.
            StoreUnavailable
        """
        if not 1 <= len(parts) <= MAX_URLS:
            raise InvalidRequest(f"parts names {len(parts)} parts, but must name 1 to {MAX_URLS}.", param="parts")
        if not self._staging.direct:
            raise Conflict("The store takes no parts directly. Send the parts to this server.", param="file")
        staged, announced = await self._open_file(tenant, adapter, upload_id, file)
        sizes = {number: size_of_part(file, announced, number) for number in parts}

        def sign() -> dict[int, PartUrl]:
            sign_one = self._staging.part_url
            return {
                number: sign_one(staged, number, size=sizes[number], sha256=sha256, lifetime_s=URL_LIFETIME_S)
                for number, sha256 in parts.items()
            }

        return await asyncio.to_thread(sign)

    async def abort(self, tenant: str, adapter: str, upload_id: str, *, actor: str) -> None:
        """Abort an open upload. An upload that has ended stays unchanged.

        Raises:
            Conflict: the upload is being finished.
        """
        session = await self.find(tenant, adapter, upload_id)
        if session.state is UploadState.OPEN:
            if await end_upload(self._database, tenant, session, UploadState.ABORTED, at=self._clock(), actor=actor):
                await remove_staged(self._staging, session)
                return
            session = await self.find(tenant, adapter, upload_id)
        if session.state.live:
            raise Conflict("The upload is already being finished. Ask for its state.", param="upload")

    async def _look_up(self, tenant: str, adapter: str, files: Mapping[str, UploadFile]) -> tuple[int, bool]:
        """Return the tenant's id, and whether the files are a version of the adapter already.

        Raises:
            Busy: the tenant has reached its limit of live uploads.
        """
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            self._check_room(await uploads.count_live(connection, owner.id))
            adapter_row = await adapters.find_adapter(connection, owner, adapter)
            return owner.id, adapter_row is not None and await _is_known(connection, adapter_row.id, files)

    def _are_stored(self, files: Mapping[str, UploadFile]) -> bool:
        return all(self._store.size(file.sha256) == file.size for file in files.values())

    async def _begin_files(
        self, upload_id: str, planned: Mapping[str, UploadFile], *, stored: bool
    ) -> dict[str, UploadFile]:
        if stored:
            return {name: replace(file, stored=True) for name, file in planned.items()}
        begun: dict[str, UploadFile] = {}
        for name, file in planned.items():
            staged = await asyncio.to_thread(self._staging.begin, upload_id, name)
            begun[name] = replace(file, token=staged.token)
        return begun

    async def _register(self, tenant: str, session: UploadSession) -> None:
        try:
            await self._insert(tenant, session)
        except BaseException:
            await remove_staged(self._staging, session)
            raise

    async def _insert(self, tenant: str, session: UploadSession) -> None:
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            self._check_room(await uploads.count_live(connection, owner.id))
            await uploads.insert_upload(connection, session)
            await audit.record(
                connection,
                at=session.created_at,
                actor=session.created_by,
                action="upload.begin",
                tenant=tenant,
                subject=session.adapter,
                after={"upload": session.id, "bytes": sum(file.size for file in session.files.values())},
            )

    def _check_room(self, live: int) -> None:
        if live >= self._limits.open_uploads:
            raise Busy(
                f"The tenant has {live} uploads in progress; the limit is {self._limits.open_uploads}. "
                "Finish or delete one.",
                retry_after=60,
            )

    async def _progress(self, session: UploadSession) -> Progress:
        received: dict[str, Sequence[int]] = {}
        for name, file in session.files.items():
            received[name] = await self._received(session, name, file)
        return Progress(session, received, self._staging.direct)

    async def _received(self, session: UploadSession, name: str, file: UploadFile) -> Sequence[int]:
        if file.stored or session.state in (UploadState.FINISHING, UploadState.DONE):
            return range(1, file.parts + 1)
        if not session.state.live:
            return ()
        try:
            sizes_received = await asyncio.to_thread(self._staging.parts, staged_file(session, name))
        except BlobNotFound:
            return ()
        sizes = enumerate(file.part_sizes, 1)
        return [number for number, size in sizes if sizes_received is None or sizes_received.get(number) == size]

    async def _open_file(self, tenant: str, adapter: str, upload_id: str, file: str) -> tuple[Staged, UploadFile]:
        session = await self.find(tenant, adapter, upload_id)
        if file not in session.files:
            names = " and ".join(session.files)
            raise NotFound(f"The upload has no file {file[:80]!r}, only {names}.", param="file")
        expired = is_past(session.expires_at, self._clock())
        if session.state is not UploadState.OPEN or expired:
            state = "expired" if expired else session.state.value
            raise Conflict(f"The upload is {state}, but must be open.", param="upload")
        if session.files[file].stored:
            raise Conflict(f"The server already has {file}. Do not send its parts.", param="file")
        return staged_file(session, file), session.files[file]


async def _is_known(connection: AsyncConnection, adapter_id: int, files: Mapping[str, UploadFile]) -> bool:
    """Return whether these two files are a version of this adapter.

    Other adapters' versions do not count, because the answer would reveal that they exist.
    """
    if CONFIG_NAME not in files:
        return False
    digest = content_digest(files[CONFIG_NAME].sha256, files[WEIGHTS_NAME].sha256)
    return await versions.find_version_by_digest(connection, adapter_id, digest) is not None
