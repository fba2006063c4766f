"""Garbage collection: blobs that no version needs, and expired rows.

Blobs without a row are normal while an upload runs. Only old blobs therefore count as garbage, and none that an open
upload names. They are deleted in the same way as a deletion's blobs (:mod:`app.services.publishing.blobs`), so a
concurrent upload of the same bytes restores them. A row without bytes is never removed. It is reported, and an
operator decides.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from adapters.stores.base import BlobInfo, BlobStore
from app.database import deletions
from app.database import gc as rows
from app.database.blobs import held_by_uploads, needed_blobs
from app.database.nodes import forget_unseen
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.deletions import FORGOTTEN_S, BlobFate
from app.services.deletion.worker import finish_deletion
from app.services.operations.store_owner import StoreOwner
from app.services.publishing.blobs import BlobService
from app.services.publishing.uploads.sweeper import UploadSweeper

_ANSWERS_KEPT = timedelta(hours=24)
_AT_ONCE = 500
_PAUSE_S = 0.2
SUBJECT = "gc"


@dataclass(frozen=True, slots=True)
class Dangling:
    """A version whose bytes are missing from the store."""

    tenant: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Garbage and inconsistencies.

    Attributes:
        orphans: blobs that nothing needs, old enough to be removed.
        young: number of blobs that nothing needs yet, but that are not old enough.
        dangling: versions without bytes; reported, never removed.
        expired_uploads, old_answers, unseen_nodes: numbers of rows.
    """

    orphans: tuple[BlobInfo, ...]
    young: int
    dangling: tuple[Dangling, ...]
    expired_uploads: int
    old_answers: int
    unseen_nodes: int


class GcService:
    """Garbage collector. Any number may run at the same time, next to any number of servers.

    Args:
        blobs: blob service with a separate node id, since no server makes its claims.

    Raises (every method):
        RegistryUnavailable, StoreUnavailable
        ForeignStore: the store is another registry's, so all its blobs would look like garbage.
    """

    def __init__(
        self,
        database: Database,
        store: BlobStore,
        blobs: BlobService,
        uploads: UploadSweeper,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._store, self._blobs, self._uploads, self._clock = database, store, blobs, uploads, clock
        self._owner = StoreOwner(database, store, clock=clock)

    async def survey(self, *, min_age: timedelta) -> Findings:
        """Find garbage without changing anything."""
        await self._owner.ensure()
        async with self._database.read() as connection:
            before = await needed_blobs(connection)
        listed = await asyncio.to_thread(lambda: {blob.digest: blob for blob in self._store.list_blobs()})
        # Read the rows again after the store: versions may have been published or deleted in the meantime.
        async with self._database.read() as connection:
            needed = await needed_blobs(connection)
            spoken_for = await held_by_uploads(connection)
            for deletion in await deletions.unfinished(connection):
                spoken_for |= set(deletion.digests)
            now = self._clock()
            expired = await rows.count_expired_uploads(connection, at=now)
            answers = await rows.count_idempotency(connection, before=now - _ANSWERS_KEPT)
            unseen = await rows.count_unseen_nodes(connection, before=_forgotten(now))
        unneeded = [
            blob for digest, blob in sorted(listed.items()) if digest not in needed and digest not in spoken_for
        ]
        orphans = tuple(blob for blob in unneeded if blob.modified_at < now - min_age)
        missing = {digest: needed[digest] for digest in before if digest in needed and digest not in listed}
        dangling = await asyncio.to_thread(self._dangling, missing)
        return Findings(orphans, len(unneeded) - len(orphans), dangling, expired, answers, unseen)

    async def collect(self, findings: Findings) -> dict[str, BlobFate]:
        """Remove the findings that are still garbage. Returns the fate of each orphan.

        After an error, any server completes a removal that has begun.
        """
        fates: dict[str, BlobFate] = {}
        digests = [blob.digest for blob in findings.orphans]
        for start in range(0, len(digests), _AT_ONCE):
            fates |= await self._delete(digests[start : start + _AT_ONCE])
        await self._uploads.sweep()
        async with self._database.write() as connection:
            await rows.forget_idempotency(connection, before=self._clock() - _ANSWERS_KEPT)
            await forget_unseen(connection, before=_forgotten(self._clock()))
        return fates

    async def _delete(self, digests: Sequence[str]) -> Mapping[str, BlobFate]:
        fates = dict.fromkeys(digests, BlobFate())
        async with self._database.write() as connection:
            identity = await deletions.insert_deletion(
                connection, [], tenant="", subject=SUBJECT, at=self._clock(), by="cli", blobs=fates
            )
        # A server may have claimed the deletion first. In that case, wait for it.
        while not await self._ended(identity):  # noqa: ASYNC110 - another process may end it
            await asyncio.sleep(_PAUSE_S)
        async with self._database.read() as connection:
            deletion = await deletions.find_deletion(connection, identity)
        return deletion.blobs if deletion else fates

    async def _ended(self, identity: str) -> bool:
        if await self._blobs.remove(identity):
            await finish_deletion(self._database, identity, at=self._clock())
        async with self._database.read() as connection:
            deletion = await deletions.find_deletion(connection, identity)
        return deletion is None or deletion.finished_at is not None

    def _dangling(self, missing: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[Dangling, ...]:
        return tuple(
            Dangling(tenant, version, digest)
            for digest, names in sorted(missing.items())
            if self._store.size(digest) is None
            for tenant, version in names
        )


def _forgotten(now: datetime) -> datetime:
    return now - timedelta(seconds=FORGOTTEN_S)
