"""Store ownership: a registry's id in the store, which must equal the id in the registry.

Two registries on one prefix would each treat the other's blobs as garbage. A store therefore belongs to the first
registry that claims it. Another registry neither serves nor removes its blobs.
"""

import asyncio
import itertools
import logging
import uuid

from adapters.errors import ForeignStore
from adapters.stores.base import BlobStore
from app.database import audit, installation
from app.database.blobs import used_blobs
from app.database.session import Database
from app.domain.clock import Clock, utc_now

logger = logging.getLogger(__name__)

#: Name under which the registry stores its id.
REGISTRY_ID = "registry_id"
#: Number of blobs to inspect in a store without an owner. The registry must know at least one of them.
_LOOKED_AT = 1000
_WAY_OUT = (
    "If it is the store of this registry, stop all servers on it and run `tenora server store adopt`. "
    "Otherwise set TENORA_STORE_URL to another prefix."
)


class StoreOwner:
    """Claims the store for its registry, and verifies the ownership later.

    Raises (every method):
        RegistryUnavailable, StoreUnavailable, DiskFull
    """

    def __init__(self, database: Database, store: BlobStore, *, clock: Clock = utc_now) -> None:
        self._database, self._store, self._clock = database, store, clock

    async def ensure(self) -> None:
        """Verify that this registry owns the store. Claim a store that is new, or older than store ownership.

        Raises:
            ForeignStore: another registry owns the store, or it has no owner and this registry knows none of its blobs.
        """
        mine, owner = await self._registry_id(), await asyncio.to_thread(self._store.owner)
        if owner is None:
            if not await self._may_claim():
                message = "The store has no owner, but holds blobs that this registry does not know."
                raise ForeignStore(f"{message} {_WAY_OUT}")
            owner = await asyncio.to_thread(self._store.claim, mine)
            logger.info("The store now belongs to registry %s.", owner)
        if owner != mine:
            raise ForeignStore(f"The store belongs to registry {owner}, but this is registry {mine}. {_WAY_OUT}")

    async def verify(self) -> None:
        """Verify that no other registry owns the store, without a claim.

        Raises:
            ForeignStore: another registry owns it.
        """
        async with self._database.read() as connection:
            mine = await installation.read(connection, REGISTRY_ID)
        owner = await asyncio.to_thread(self._store.owner)
        if owner is not None and owner != mine:
            raise ForeignStore(
                f"The store belongs to registry {owner}, but this is registry {mine or 'without an id'}. {_WAY_OUT}"
            )

    async def other(self) -> str | None:
        """Return the id of another registry that owns the store, or None."""
        mine, owner = await self._registry_id(), await asyncio.to_thread(self._store.owner)
        return None if owner == mine else owner

    async def adopt(self, *, actor: str) -> tuple[str | None, str]:
        """Take over the store for this registry. Returns the owner before and the owner after."""
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
            registry_id = await installation.read(connection, REGISTRY_ID)
        if registry_id is not None:
            return registry_id
        async with self._database.write() as connection:
            return await installation.write_once(connection, REGISTRY_ID, uuid.uuid4().hex)

    async def _may_claim(self) -> bool:
        """Return whether a store without an owner is empty, or holds bytes that this registry needs."""
        digests = await asyncio.to_thread(
            lambda: [blob.digest for blob in itertools.islice(self._store.list_blobs(), _LOOKED_AT)]
        )
        if not digests:
            return True
        async with self._database.read() as connection:
            return bool(await used_blobs(connection, digests))
