"""Uploads of files in parts, as OpenAI has them: create, add parts in any order, complete or cancel.

A part is a blob with a row. Completing an upload joins the parts in the order that the client names, stores the file,
and in one transaction commits its row, ends the upload and requests the deletion of the parts.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, file_uploads, files
from app.database.session import Database
from app.domain.access import Tenant
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Conflict, FileLost, InvalidRequest, NotFound, TooLarge, TooManyOpen
from app.domain.files import FilePart, FileUpload, FileUploadState, Purpose, StoredFile, is_upload_id, shown_name
from app.services.common.file_removal import described, end_upload
from app.services.common.lookups import tenant_or_404
from app.services.files.compression import blocks
from app.services.files.contents import FileContents
from app.services.files.validation import check_room, checked_size
from app.settings import BatchSettings, LimitSettings
from app.support.spool import Spool

#: Maximum size of a part in bytes, as OpenAI has it.
MAX_PART_BYTES = 64 * 2**20
#: Maximum number of parts of an upload.
MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class CompletedUpload:
    """An upload, with its file if it is completed."""

    upload: FileUpload
    file: StoredFile | None = None


class FileUploadService:
    """Use cases of uploads. ``tenant`` is a slug, and ``actor`` is a key's id.

    Args:
        spool: spool for the joined file.
        requested: callback after each deletion of parts, so that this node starts before its next poll.

    Raises (every method):
        NotFound: no such tenant, or no such upload of this tenant.
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        contents: FileContents,
        spool: Spool,
        settings: BatchSettings,
        limits: LimitSettings,
        requested: Callable[[], None],
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._contents, self._spool = database, contents, spool
        self._settings, self._limits, self._requested, self._clock = settings, limits, requested, clock

    async def create(
        self,
        tenant: str,
        *,
        size: int,
        filename: str,
        mime_type: str,
        purpose: Purpose,
        lifetime_s: int,
        actor: str,
    ) -> FileUpload:
        """Begin an upload. It counts towards the tenant's quota at once.

        Args:
            size: size of the whole file in bytes.
            lifetime_s: seconds from the file's creation to its expiry.

        Raises:
            InvalidRequest, TooLarge: of ``size``.
            QuotaExceeded
            TooManyOpen: the tenant has reached its limit of unfinished uploads.
        """
        checked_size(size, self._settings, param="bytes")
        now, most = self._clock(), self._limits.open_uploads
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant, lock=True)
            if await file_uploads.count_pending(connection, owner.id) >= most:
                raise TooManyOpen(f"The tenant has {most} unfinished uploads. Complete or cancel some of them first.")
            await check_room(connection, owner, size, self._settings)
            upload = FileUpload(
                id=f"upload_{uuid.uuid4().hex}",
                tenant_id=owner.id,
                state=FileUploadState.PENDING,
                purpose=purpose,
                filename=shown_name(filename),
                mime_type=mime_type,
                bytes=size,
                lifetime_s=lifetime_s,
                created_at=now,
                created_by=actor,
                expires_at=now + timedelta(hours=self._limits.upload_hours),
            )
            await _insert(connection, upload, tenant)
        return upload

    async def part_room(self, tenant: str, upload_id: str) -> int:
        """Return the maximum size in bytes of the next part, before its bytes are read.

        Raises:
            Conflict: the upload has ended.
            TooLarge: the upload takes no more parts.
        """
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            upload = self._pending(await _find(connection, owner, upload_id))
            room = _room(upload, *await file_uploads.parts_total(connection, upload.id))
        return min(room, MAX_PART_BYTES)

    async def add_part(self, tenant: str, upload_id: str, path: Path) -> FilePart:
        """Store a received part.

        Raises:
            Conflict: the upload has ended.
            TooLarge: the upload takes no more parts.
            StoreUnavailable, DiskFull
        """
        identity = f"part_{uuid.uuid4().hex}"
        async with (
            self._contents.stored_blob(path, identity) as content,
            self._database.write() as connection,
        ):
            owner = await tenant_or_404(connection, tenant)
            upload = self._pending(await _find(connection, owner, upload_id, lock=True))
            if content.bytes > _room(upload, *await file_uploads.parts_total(connection, upload.id)):
                raise _too_many(upload)
            part = FilePart(identity, upload.id, content.bytes, content.digest, self._clock())
            await file_uploads.insert_part(connection, part)
        return part

    async def complete(
        self, tenant: str, upload_id: str, part_ids: Sequence[str], *, md5: str | None, actor: str
    ) -> CompletedUpload:
        """Join the parts into a file. Idempotent: a call after the end returns the same file.

        Args:
            part_ids: ids of the parts, in the order of their bytes.
            md5: MD5 of the whole file in hex, to be verified.

        Raises:
            InvalidRequest: unknown parts, parts of another size than announced, or another MD5.
            Conflict: the upload was cancelled or has expired, or its file was deleted.
            FileLost, Busy, StoreUnavailable, DiskFull
        """
        done = await self._completed(tenant, upload_id)
        if done is not None:
            return done
        try:
            return await self._join(tenant, upload_id, part_ids, md5, actor)
        except (Conflict, FileLost, InvalidRequest):
            # A repeated call may have completed the upload in the meantime and deleted the parts.
            if (done := await self._completed(tenant, upload_id)) is not None:
                return done
            raise

    async def cancel(self, tenant: str, upload_id: str, *, actor: str) -> FileUpload:
        """Cancel an upload and delete its parts. Idempotent.

        Raises:
            Conflict: the upload is completed or has expired.
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant)
            upload = await _find(connection, owner, upload_id, lock=True)
            if upload.state is not FileUploadState.CANCELLED:
                upload = self._pending(upload)
                await end_upload(
                    connection, upload, FileUploadState.CANCELLED, tenant=tenant, at=self._clock(), actor=actor
                )
            ended = await _find(connection, owner, upload_id)
        self._requested()
        return ended

    async def _completed(self, tenant: str, upload_id: str) -> CompletedUpload | None:
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            upload = await _find(connection, owner, upload_id)
            if upload.file_id is None:
                return None
            file = await files.find_file(connection, owner.id, upload.file_id)
        if file is None:
            raise Conflict("The file of this upload was deleted. Begin a new upload.", param="upload_id")
        return CompletedUpload(upload, file)

    async def _join(
        self, tenant: str, upload_id: str, part_ids: Sequence[str], md5: str | None, actor: str
    ) -> CompletedUpload:
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            upload = self._pending(await _find(connection, owner, upload_id))
            parts = _ordered(await file_uploads.parts_of(connection, upload.id), part_ids)
        _check_total(upload, parts)
        async with self._spool.folder(tenant) as folder:
            path = folder / "file"
            await self._contents.join([part.digest for part in parts], path)
            if md5 is not None and await asyncio.to_thread(_md5, path) != md5.lower():
                raise InvalidRequest("md5 is not that of the parts in this order.", param="md5")
            return await self._finish(tenant, upload, path, actor)

    async def _finish(self, tenant: str, upload: FileUpload, path: Path, actor: str) -> CompletedUpload:
        now = self._clock()
        async with (
            self._contents.stored(
                path,
                tenant_id=upload.tenant_id,
                purpose=upload.purpose,
                filename=upload.filename,
                created_by=actor,
                expires_at=now + timedelta(seconds=upload.lifetime_s),
                created_at=now,
            ) as file,
            self._database.write() as connection,
        ):
            owner = await tenant_or_404(connection, tenant)
            self._pending(await _find(connection, owner, upload.id, lock=True))
            await files.insert_file(connection, file)
            state, at = FileUploadState.COMPLETED, file.created_at
            await end_upload(connection, upload, state, tenant=tenant, at=at, actor=actor, file_id=file.id)
            await audit.record(
                connection,
                at=at,
                actor=actor,
                action="file.create",
                tenant=tenant,
                subject=file.id,
                after=described(file),
            )
            completed = await _find(connection, owner, upload.id)
        self._requested()
        return CompletedUpload(completed, file)

    def _pending(self, upload: FileUpload) -> FileUpload:
        if upload.state is not FileUploadState.PENDING:
            raise Conflict(f"The upload is {upload.state.value}. Begin a new upload.", param="upload_id")
        if is_past(upload.expires_at, self._clock()):
            raise Conflict("The upload has expired. Begin a new upload.", param="upload_id")
        return upload


async def _insert(connection: AsyncConnection, upload: FileUpload, tenant: str) -> None:
    await file_uploads.insert_file_upload(connection, upload)
    await audit.record(
        connection,
        at=upload.created_at,
        actor=upload.created_by,
        action="file_upload.begin",
        tenant=tenant,
        subject=upload.id,
        after={"purpose": upload.purpose.value, "bytes": upload.bytes},
    )


async def _find(connection: AsyncConnection, owner: Tenant, upload_id: str, *, lock: bool = False) -> FileUpload:
    upload = None
    if is_upload_id(upload_id):
        upload = await file_uploads.find_file_upload(connection, owner.id, upload_id, lock=lock)
    if upload is None:
        raise NotFound(f"There is no upload {upload_id[:80]!r}.", param="upload_id")
    return upload


def _room(upload: FileUpload, count: int, size: int) -> int:
    """Return the bytes that further parts may have: a retry may leave parts that the file does not need.

    Raises:
        TooLarge: no bytes are left.
    """
    most = 2 * upload.bytes
    if count >= MAX_PARTS:
        raise TooLarge(f"The upload has {count} parts, which is the limit. Begin a new upload.", param="data")
    if size >= most:
        raise _too_many(upload)
    return most - size


def _too_many(upload: FileUpload) -> TooLarge:
    return TooLarge(
        f"The parts would have more than twice the {upload.bytes} bytes that were announced. Begin a new upload.",
        param="data",
    )


def _ordered(parts: Sequence[FilePart], part_ids: Sequence[str]) -> list[FilePart]:
    parts_by_id = {part.id: part for part in parts}
    if len(set(part_ids)) != len(part_ids):
        raise InvalidRequest("part_ids names a part twice. Name each part once.", param="part_ids")
    for identity in part_ids:
        if identity not in parts_by_id:
            raise InvalidRequest(f"The upload has no part {identity!r:.80}.", param="part_ids")
    return [parts_by_id[identity] for identity in part_ids]


def _check_total(upload: FileUpload, parts: Sequence[FilePart]) -> None:
    total = sum(part.bytes for part in parts)
    if total != upload.bytes:
        raise InvalidRequest(
            f"The parts have {total} bytes together, but {upload.bytes} bytes were announced. "
            "Send the missing parts, or name all parts in part_ids.",
            param="part_ids",
        )


def _md5(path: Path) -> str:
    # A checksum of the client's, not a protection.
    digest = hashlib.md5(usedforsecurity=False)
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()
