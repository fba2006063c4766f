"""Upload sweeper: abort expired uploads and remove orphaned files from the store's staging area."""

import asyncio
import logging
from datetime import timedelta

from adapters.stores.base import BlobStore
from app.database import uploads
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.uploads import UploadState
from app.services.operations.store_owner import StoreOwner
from app.services.publishing.uploads.closing import end_upload, remove_staged
from app.services.publishing.uploads.finishing import SILENT
from app.settings import LimitSettings

logger = logging.getLogger(__name__)

EVERY_S = 600

#: How long the row of an ended upload is kept.
_REMEMBERED = timedelta(days=7)
_AT_ONCE = 100
_ACTOR = "engine"


class UploadSweeper:
    """Periodic clean-up that runs on every server. Its steps are idempotent, so servers may sweep at the same time."""

    def __init__(self, database: Database, store: BlobStore, limits: LimitSettings, *, clock: Clock = utc_now) -> None:
        self._database, self._staging, self._clock = database, store.staging, clock
        self._owner = StoreOwner(database, store, clock=clock)
        self._lifetime = timedelta(hours=limits.upload_hours)

    async def sweep(self) -> None:
        """Abort expired uploads, then remove staged files that belong to no live upload.

        Raises:
            RegistryUnavailable, StoreUnavailable: the next call continues.
            ForeignStore: the store belongs to another registry, whose uploads would look abandoned.
        """
        now = self._clock()
        await self._end_expired()
        await self._owner.ensure()
        # An upload begins in the store before it has a row. So read the rows before the store, and keep young files.
        async with self._database.read() as connection:
            live = await uploads.live_upload_ids(connection)
        swept = await asyncio.to_thread(self._staging.sweep, before=now - self._lifetime, keep=live)
        if swept:
            logger.info("Removed %d files of abandoned uploads from the store.", swept)
        async with self._database.write() as connection:
            await uploads.forget_uploads(connection, before=now - _REMEMBERED)

    async def _end_expired(self) -> None:
        while True:
            now = self._clock()
            async with self._database.read() as connection:
                expired = await uploads.given_up_uploads(connection, now=now, silent_since=now - SILENT, limit=_AT_ONCE)
            for tenant, session in expired:
                if await end_upload(self._database, tenant, session, UploadState.ABORTED, at=now, actor=_ACTOR):
                    await remove_staged(self._staging, session)
            if len(expired) < _AT_ONCE:
                return
