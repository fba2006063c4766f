"""Whose store it is: a registry's id in the store, and the same one in the registry.

Two registries on one prefix would take each other's blobs for garbage. So a store belongs to the first registry that
claims it, and nothing in another one's is served or removed.
"""

import asyncio
import itertools
import logging
import uuid

from adapters.errors import ForeignStore
from adapters.stores.base import BlobStore
from app.database import audit, installation
from app.database.blobs import used_by_versions
from app.database.session import Database
from app.domain.clock import Clock, utc_now

logger = logging.getLogger(__name__)

#: The registry's own id, among the facts about the installation.
REGISTRY_ID = "registry_id"
#: Blobs of a store without an owner of which the registry must know one.
_LOOKED_AT = 1000
_WAY_OUT = (
    "If it is this registry's own, stop all servers on it and run `tenora store adopt`; "
    "otherwise set TENORA_STORE_URL to another prefix."
)


class StoreOwner:
    """Claims the store for its registry, and proves later that it still is its own.

    Raises (every method):
        RegistryUnavailable, StoreUnavailable, DiskFull
    """

    def __init__(self, database: Database, store: BlobStore, *, clock: Clock = utc_now) -> None:
        self._database, self._store, self._clock = database, store, clock

    async def ensure(self) -> None:
        """Prove that the store is this registry's; claim one that is new, or from before stores had owners.

        Raises:
            ForeignStore: it is another registry's, or has no owner and only blobs that this registry does not know.
        """
        mine, owner = await self._registry_id(), await asyncio.to_thread(self._store.owner)
        if owner is None:
            if not await self._may_claim():
                raise ForeignStore(f"The store has blobs that this registry does not know, and no owner. {_WAY_OUT}")
            owner = await asyncio.to_thread(self._store.claim, mine)
            logger.info("the store belongs to registry %s from now on", owner)
        if owner != mine:
            raise ForeignStore(f"The store belongs to registry {owner}, this is registry {mine}. {_WAY_OUT}")

    async def other(self) -> str | None:
        """The registry that the store belongs to, if it is not this one."""
        mine, owner = await self._registry_id(), await asyncio.to_thread(self._store.owner)
        return None if owner == mine else owner

    async def adopt(self, *, actor: str) -> tuple[str | None, str]:
        """Make the store this registry's, whoever it belonged to; returns the owner before and the owner now."""
        mine, before = await self._registry_id(), await asyncio.to_thread(self._store.owner)
        if before != mine:
            async with self._database.write() as connection:
                await audit.record(
                    connection,
                    at=self._clock(),
                    actor=actor,
                    action="store.adopt",
                    tenant=None,
                    subject="store",
                    before=None if before is None else {"registry": before},
                    after={"registry": mine},
                )
            await asyncio.to_thread(self._store.take_over, mine)
        return before, mine

    async def _registry_id(self) -> str:
        async with self._database.read() as connection:
            known = await installation.read(connection, REGISTRY_ID)
        if known is not None:
            return known
        async with self._database.write() as connection:
            return await installation.write_once(connection, REGISTRY_ID, uuid.uuid4().hex)

    async def _may_claim(self) -> bool:
        """Whether a store without an owner is empty, or has bytes of this registry's versions."""
        some = await asyncio.to_thread(
            lambda: [blob.digest for blob in itertools.islice(self._store.list_blobs(), _LOOKED_AT)]
        )
        if not some:
            return True
        async with self._database.read() as connection:
            return bool(await used_by_versions(connection, some))
