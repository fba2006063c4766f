"""Deleting versions: the rows go at once, what they leave behind goes as soon as nobody uses it."""

import asyncio
import contextlib
import logging

from adapters.cache import DiskCache
from adapters.errors import StorageError
from adapters.identity import VersionKey
from adapters.stores.base import BlobStore
from app.database.session import Database
from app.database.versions import unused_digests
from app.engine.base import Engine
from app.errors import EngineUnavailable, RegistryUnavailable
from app.registry import Removed
from app.services.adapters import AdapterService

logger = logging.getLogger(__name__)


class RemovalService:
    """Deletes and then cleans up: engine, this node's disk, store, in that order.

    A request that runs on a deleted version ends undisturbed; the engine gives the version up after it, so
    cleaning up may take as long as the longest answer and nobody waits for it.

    Args:
        blob_lock: held while a row and its bytes must agree; shared with whoever publishes.
    """

    def __init__(
        self,
        adapters: AdapterService,
        database: Database,
        store: BlobStore,
        cache: DiskCache,
        engine: Engine,
        blob_lock: asyncio.Lock,
    ) -> None:
        self._adapters, self._database, self._store = adapters, database, store
        self._cache, self._engine, self._blob_lock = cache, engine, blob_lock
        self._cleanups: set[asyncio.Task[None]] = set()

    async def delete_version(self, tenant: str, adapter: str, number: int, *, actor: str) -> None:
        """Delete one version.

        Raises:
            NotFound, RegistryUnavailable
        """
        self._clean_up_later(await self._adapters.delete_version(tenant, adapter, number, actor=actor))

    async def delete_adapter(self, tenant: str, adapter: str, *, actor: str) -> None:
        """Delete an adapter with all its versions.

        Raises:
            NotFound, RegistryUnavailable
        """
        self._clean_up_later(await self._adapters.delete_adapter(tenant, adapter, actor=actor))

    async def settle(self) -> None:
        """Wait until everything deleted so far is cleaned up."""
        await asyncio.gather(*self._cleanups)

    async def close(self) -> None:
        """Give up what is not cleaned up yet."""
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    def _clean_up_later(self, removed: Removed) -> None:
        task = asyncio.create_task(self._clean_up(removed))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _clean_up(self, removed: Removed) -> None:
        try:
            await asyncio.gather(*(self._forget(key) for key in removed.keys))
            await self._delete_blobs(removed.digests)
        except (RegistryUnavailable, StorageError):
            logger.exception("versions %s left something behind", [key.version_id for key in removed.keys])

    async def _forget(self, key: VersionKey) -> None:
        # An engine that died holds nothing any more.
        with contextlib.suppress(EngineUnavailable):
            await self._engine.unload(key.version_id)
        await self._cache.drop(key)

    async def _delete_blobs(self, digests: tuple[str, ...]) -> None:
        async with self._blob_lock:
            # Somebody may have published the same bytes since the row went.
            async with self._database.read() as connection:
                unused = await unused_digests(connection, digests)
            for digest in unused:
                await asyncio.to_thread(self._store.delete, digest)
