"""Lost bytes: report versions whose bytes the store has lost, until they are restored.

The disk cache detects a loss when it fetches a version. This module turns that into an audit row, which subscribers
of events see, and an error in the log. A version whose bytes are back can be fetched again at once.
"""

import asyncio
import logging
from datetime import datetime, timedelta

from adapters.cache import DiskCache, Lost
from adapters.identity import VersionKey
from adapters.stores.base import BlobStore
from app.database import audit
from app.database.blobs import names_of_needed
from app.database.session import Database
from app.domain.clock import Clock, utc_now

logger = logging.getLogger(__name__)

#: Seconds between two passes over failed fetches.
EVERY_S = 5.0
#: A version that is restored and lost again is reported at most once in this time.
_QUIET = timedelta(hours=1)
#: Maximum versions to look up in the store in one pass.
_AT_ONCE = 50
_ACTOR = "engine"


class LostBytes:
    """Lost bytes that this node knows of."""

    def __init__(self, database: Database, store: BlobStore, cache: DiskCache, *, clock: Clock = utc_now) -> None:
        self._database, self._store, self._cache, self._clock = database, store, cache, clock
        self._reported: dict[VersionKey, datetime] = {}
        self._looks = 0

    def counts(self) -> dict[str, int]:
        """Count the versions with missing bytes, and those with damaged bytes."""
        lost = self._cache.lost
        missing = sum(version.missing for version in lost)
        return {"missing": missing, "damaged": len(lost) - missing}

    async def maintain(self) -> None:
        """Report new losses, and allow fetches of versions whose bytes are back.

        Raises:
            RegistryUnavailable, StoreUnavailable: the next call continues.
        """
        lost = self._cache.lost
        still = {version.key for version in lost}
        quiet_since = self._clock() - _QUIET
        self._reported = {key: at for key, at in self._reported.items() if key in still or at > quiet_since}
        if not lost:
            return
        await self._report([version for version in lost if version.key not in self._reported])
        start = self._looks * _AT_ONCE % len(lost)
        self._looks += 1
        for version in (*lost[start:], *lost[:start])[:_AT_ONCE]:
            if await self._is_back(version):
                self._cache.forget_failure(version.key)

    async def _report(self, lost: list[Lost]) -> None:
        if not lost:
            return
        now = self._clock()
        async with self._database.write() as connection:
            needed = await names_of_needed(connection, [version.key for version in lost])
            for version in lost:
                if version.key in needed:
                    tenant, name = needed[version.key]
                    await audit.record(
                        connection,
                        at=now,
                        actor=_ACTOR,
                        action="version.bytes_missing" if version.missing else "version.bytes_damaged",
                        tenant=tenant,
                        subject=name,
                        after={"digest": version.key.digest},
                    )
        for version in lost:
            if version.key not in needed:
                self._cache.forget_failure(version.key)  # deleted in the meantime
                continue
            self._reported[version.key] = now
            tenant, name = needed[version.key]
            if version.missing:
                logger.error("The store has lost the bytes of %s (tenant %s). Push the same files again.", name, tenant)
            else:
                logger.error(
                    "The bytes of %s (tenant %s) in the store are damaged. "
                    "Remove the blobs %s and %s, then push the files again.",
                    name,
                    tenant,
                    version.key.config_digest,
                    version.key.weights_digest,
                )

    async def _is_back(self, version: Lost) -> bool:
        if self._cache.has(version.key):
            return True
        # Only the next fetch can tell whether damaged bytes were replaced.
        return version.missing and await asyncio.to_thread(stored_whole, self._store, version.key)


def stored_whole(store: BlobStore, key: VersionKey) -> bool:
    """Return whether the store has both files of a version with the right sizes. Blocks.

    Raises:
        StoreUnavailable
    """
    sizes = ((key.config_digest, key.config_bytes), (key.weights_digest, key.weights_bytes))
    return all(store.size(digest) == size for digest, size in sizes)
