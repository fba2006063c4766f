"""Blob deletion that is safe against concurrent publishing of the same bytes, on any node.

Publishing stores bytes first and commits a row second, so bytes without a row are normal. A deletion must not remove
bytes whose row is just being committed. Neither side may hold a transaction open during a call to the store. So each
side first writes its intent and then reads the other side's::

    publish   put bytes -> commit row -> wait while the bytes are claimed -> put bytes again (a check if present)
    delete    commit claim -> read the rows: none? -> delete, verify -> commit the outcome, which ends the claim

If the deleter read the rows before the row was committed, its claim was committed before the publisher read the
claims. The publisher then waits and puts the bytes back. A version is served only after that, because its state is
``validating`` until then. A crash at any step therefore leaves at worst unused bytes, or a version that is not ready.
A claim lasts longer than the store needs to finish or abandon a deletion whose process has died.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from adapters.stores.base import BlobStore
from app.database import deletions
from app.database.blobs import held_by_uploads, used_blobs
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.deletions import CLAIM_USE_S, BlobFate, claim, claimed_by_others
from app.services.operations.store_owner import StoreOwner

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_AT_ONCE = 50
_USED, _HELD = "another version has the same bytes", "an upload under way has the same bytes"


class BlobService:
    """Deletes unused blobs, and makes publishers wait for a deletion's claims.

    Every method can raise RegistryUnavailable.

    Args:
        node: id of the node that owns the claims.
    """

    def __init__(self, database: Database, store: BlobStore, node: str, *, clock: Clock = utc_now) -> None:
        self._database, self._store, self._node, self._clock = database, store, node, clock
        self._owner = StoreOwner(database, store, clock=clock)

    async def settled(self, digests: Collection[str]) -> None:
        """Wait until no deletion claims these blobs.

        A publisher calls this between committing a version's row and its second put.
        """
        while True:
            async with self._database.read() as connection:
                claims = await deletions.unfinished_blobs(connection)
            if not claimed_by_others(claims, digests, self._clock()):
                return
            await asyncio.sleep(_POLL_S)

    async def remove(self, deletion_id: str) -> bool:
        """Decide about a deletion's blobs and delete the unused ones, as far as possible now.

        Returns:
            True if all blobs are decided.

        Raises:
            RegistryUnavailable, StoreUnavailable: a later call continues.
            ForeignStore: nothing is removed.
        """
        await self._owner.ensure()
        while (fates := await self.claim(deletion_id)) is not None:
            mine = {digest: fate for digest, fate in fates.items() if fate.claimed_by == self._node}
            outcome = await self._delete_unneeded(mine)
            if await self._settle(deletion_id, outcome):
                return True
            if not any(fate.decided for fate in outcome.values()):
                return False
        return False

    async def claim(self, deletion_id: str) -> dict[str, BlobFate] | None:
        """Commit claims on a deletion's blobs.

        Returns:
            The fate of each blob; None if there is nothing to claim, or another node works on the deletion.
        """
        async with self._database.write() as connection:
            deletion = await deletions.find_deletion(connection, deletion_id, lock=True)
            if deletion is None or deletion.finished_at is not None:
                return None
            fates = claim(deletion, self._node, self._clock(), most=_AT_ONCE)
            if fates is not None:
                await deletions.set_blobs(connection, deletion_id, fates)
            return fates

    async def _delete_unneeded(self, claimed: Mapping[str, BlobFate]) -> dict[str, BlobFate]:
        async with self._database.read() as connection:
            used = await used_blobs(connection, claimed)
            held = await held_by_uploads(connection)
        outcome = {}
        for digest, fate in claimed.items():
            if digest in used or digest in held:
                outcome[digest] = BlobFate(kept=_USED if digest in used else _HELD)
            elif fate.claimed_at and (self._clock() - fate.claimed_at).total_seconds() < CLAIM_USE_S:
                outcome[digest] = await asyncio.to_thread(self._delete, digest)
        return outcome

    def _delete(self, digest: str) -> BlobFate:
        self._store.delete(digest)
        if self._store.size(digest) is not None:
            # An upload that has no row yet has put the bytes back. The next read of the rows decides.
            return BlobFate()
        return BlobFate(gone_at=self._clock())

    async def _settle(self, deletion_id: str, outcome: Mapping[str, BlobFate]) -> bool:
        async with self._database.write() as connection:
            deletion = await deletions.find_deletion(connection, deletion_id, lock=True)
            if deletion is None or deletion.finished_at is not None:
                return deletion is not None
            fates = dict(deletion.blobs) | dict(outcome)
            await deletions.set_blobs(connection, deletion_id, fates)
        return replace(deletion, blobs=fates).blobs_decided
