"""Files of tenants: create, list, show, read, delete."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from app.database import audit, files
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, NotFound, TenoraError, TooLarge
from app.domain.files import Purpose, StoredFile, is_file_id, shown_name
from app.services.common.file_removal import described, remove_file
from app.services.common.lookups import file_or_404, tenant_or_404
from app.services.files.contents import FileContents
from app.services.files.validation import check_room, full
from app.settings import BatchSettings


@dataclass(frozen=True, slots=True)
class FilePage:
    """Page of a list."""

    files: tuple[StoredFile, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class FileRoom:
    """Room for one more file.

    Attributes:
        bytes: maximum size of the file.
        refusal: error for a larger one.
    """

    bytes: int
    refusal: TenoraError


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file and the path of its local copy."""

    file: StoredFile
    path: Path


class FileService:
    """Use cases of files. ``tenant`` is a slug, and ``actor`` is a key's id.

    Args:
        requested: callback after each deletion, so that this node starts before its next poll.

    Raises (every method):
        NotFound: no such tenant, or no such file of this tenant.
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        contents: FileContents,
        settings: BatchSettings,
        requested: Callable[[], None],
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._contents, self._settings = database, contents, settings
        self._requested, self._clock = requested, clock

    async def room(self, tenant: str) -> FileRoom:
        """Return the room for one more file, before its bytes are read.

        Raises:
            QuotaExceeded: there is no room for any.
        """
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            used = await check_room(connection, owner, 1, self._settings)
        left, most = self._settings.tenant_bytes - used.bytes, self._settings.file_bytes
        if left < most:
            return FileRoom(left, full(used, self._settings))
        return FileRoom(most, TooLarge(f"The file is larger than the limit of {most} bytes.", param="file"))

    async def create(
        self, tenant: str, path: Path, *, purpose: Purpose, filename: str, lifetime_s: int, actor: str
    ) -> StoredFile:
        """Store a received file.

        Args:
            filename: name that the client gives, in any characters.
            lifetime_s: seconds until it expires.

        Raises:
            QuotaExceeded
            StoreUnavailable, DiskFull
        """
        now = self._clock()
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
        async with (
            self._contents.stored(
                path,
                tenant_id=owner.id,
                purpose=purpose,
                filename=shown_name(filename),
                created_by=actor,
                expires_at=now + timedelta(seconds=lifetime_s),
                created_at=now,
            ) as file,
            self._database.write() as connection,
        ):
            owner = await tenant_or_404(connection, tenant, lock=True)
            if owner.id != file.tenant_id:
                raise NotFound(f"There is no tenant {tenant!r}.", param="tenant")
            await check_room(connection, owner, file.bytes, self._settings)
            await files.insert_file(connection, file)
            await audit.record(
                connection,
                at=file.created_at,
                actor=actor,
                action="file.create",
                tenant=tenant,
                subject=file.id,
                after=described(file),
            )
        return file

    async def list_files(
        self, tenant: str, *, purpose: str | None, after: str | None, ascending: bool, limit: int
    ) -> FilePage:
        """List files by the time of their creation.

        Args:
            after: id of the last file on the page before; it may have been deleted since.
        """
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            position = None
            if after is not None:
                position = await files.find_position(connection, owner.id, after) if is_file_id(after) else None
                if position is None:
                    raise NotFound(f"There is no file {after[:80]!r}.", param="after")
            rows = await files.list_files(
                connection, owner.id, purpose=purpose, after=position, ascending=ascending, limit=limit + 1
            )
        return FilePage(tuple(rows[:limit]), len(rows) > limit)

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        async with self._database.read() as connection:
            return await file_or_404(connection, await tenant_or_404(connection, tenant), file_id)

    @asynccontextmanager
    async def open(self, tenant: str, file_id: str) -> AsyncGenerator[OpenFile]:
        """Provide a file with its content, as long as the block runs.

        Raises:
            FileLost, Busy, StoreUnavailable, DiskFull
        """
        file = await self.get(tenant, file_id)
        async with self._contents.open(file) as path:
            yield OpenFile(file, path)

    async def delete(self, tenant: str, file_id: str, *, actor: str) -> str:
        """Delete a file. No route shows it from now on. Returns the id of the deletion, which reports its bytes.

        Raises:
            Conflict: an unfinished batch reads it.
        """
        async with self._database.write() as connection:
            owner = await tenant_or_404(connection, tenant)
            file = await file_or_404(connection, owner, file_id, lock=True)
            if reader := await files.unfinished_reader(connection, file.id):
                raise Conflict(
                    f"The batch {reader} reads this file. Wait for its end or cancel it, then delete the file.",
                    param="file_id",
                )
            deletion = await remove_file(
                connection, file, tenant=tenant, at=self._clock(), actor=actor, action="file.delete"
            )
        self._requested()
        return deletion
