"""File sweeper: delete expired files and expired uploads, forget old rows, and count bytes for metrics."""

import logging
from collections.abc import Mapping
from datetime import timedelta

from app.database import deletions, file_uploads, files
from app.database.session import Database
from app.domain.clock import Clock, is_past, utc_now
from app.domain.files import FileUploadState, FileUsage, Purpose
from app.services.common.file_removal import end_upload, remove_file

logger = logging.getLogger(__name__)

EVERY_S = 60.0

#: How long rows of deleted files and of ended uploads are kept, so that a list can continue after a deleted file.
_REMEMBERED = timedelta(days=7)
#: How long finished deletions of files and parts are kept. The audit trail names them for longer.
_REPORTED = timedelta(days=30)
_AT_ONCE = 100
_ACTOR = "engine"
_NONE = dict.fromkeys(Purpose, FileUsage(0, 0))


class FileSweeper:
    """Periodic clean-up that runs on every server. Its steps are idempotent, so servers may sweep at the same time.

    Attributes:
        usage: files of all tenants by purpose, as of the last sweep.
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self.usage: Mapping[Purpose, FileUsage] = _NONE

    async def sweep(self) -> None:
        """Delete what has expired, except files that an unfinished batch reads.

        Raises:
            RegistryUnavailable: the next call continues.
        """
        expired = await self._expire_files()
        await self._expire_uploads()
        if expired:
            logger.info("Deleted %d expired files.", expired)
        await self._forget()
        async with self._database.read() as connection:
            self.usage = {**_NONE, **await files.usage_of_all(connection)}

    async def _forget(self) -> None:
        """Delete old rows, in steps, so that others can write between two of them."""
        now = self._clock()
        for forget, age in (
            (file_uploads.forget_uploads, _REMEMBERED),
            (files.forget_files, _REMEMBERED),
            (deletions.forget_of_files, _REPORTED),
        ):
            count = _AT_ONCE
            while count == _AT_ONCE:
                async with self._database.write() as connection:
                    count = await forget(connection, before=now - age, limit=_AT_ONCE)

    async def _expire_files(self) -> int:
        count = 0
        while True:
            async with self._database.read() as connection:
                expired = await files.expired_files(connection, now=self._clock(), limit=_AT_ONCE)
            for tenant, file in expired:
                count += await self._expire_file(tenant, file.tenant_id, file.id)
            if len(expired) < _AT_ONCE:
                return count

    async def _expire_file(self, tenant: str, tenant_id: int, file_id: str) -> bool:
        now = self._clock()
        async with self._database.write() as connection:
            # Read again under the lock: a batch may have begun to read the file, or another server was faster.
            file = await files.find_file(connection, tenant_id, file_id, lock=True)
            if file is None or not is_past(file.expires_at, now):
                return False
            if await files.unfinished_reader(connection, file_id):
                return False
            await remove_file(connection, file, tenant=tenant, at=now, actor=_ACTOR, action="file.expire")
        return True

    async def _expire_uploads(self) -> None:
        while True:
            now = self._clock()
            async with self._database.read() as connection:
                expired = await file_uploads.expired_uploads(connection, now=now, limit=_AT_ONCE)
            for tenant, upload in expired:
                async with self._database.write() as connection:
                    await end_upload(connection, upload, FileUploadState.EXPIRED, tenant=tenant, at=now, actor=_ACTOR)
            if len(expired) < _AT_ONCE:
                return
