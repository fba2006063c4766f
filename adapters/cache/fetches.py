"""Fetches from the store with a fair queue, a deadline, and backoff after a failure."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from adapters.cache.failures import MOST_FAILURES, Failures
from adapters.cache.files import VersionFiles
from adapters.errors import BlobNotFound, DigestMismatch, StorageError, StoreUnavailable
from adapters.fair_semaphore import FairSemaphore, Permit
from adapters.identity import VersionKey

#: Retry-After of a late fetch, in seconds.
RETRY_S = 5
#: Limit of late fetches that release their permit.
_LATE = 16


@dataclass(frozen=True, slots=True)
class Lost:
    """Version whose bytes are missing or wrong in the store.

    Attributes:
        missing: True if the store has no bytes, False if it has wrong ones.
    """

    key: VersionKey
    missing: bool


class Fetches:
    """Fetches in a dedicated thread pool, so that a stalled store blocks nothing else.

    A fetch that passes its deadline goes on, because a large version may need the time, but its permit is released. At
    most 16 late fetches release theirs. After that, a store that never answers gets no more requests until threads
    return.

    Args:
        now: monotonic clock, in seconds.
        deadline_s: seconds after which a fetch is late.
        places: number of concurrent fetches.

    Attributes:
        semaphore: semaphore of the fetches.
        begun: number of fetches since the process started.
        failed: number of fetches that failed or passed the deadline.
        lost: versions whose last fetch found no bytes in the store (BlobNotFound) or wrong ones (DigestMismatch).
    """

    def __init__(self, files: VersionFiles, now: Callable[[], float], *, deadline_s: float, places: int) -> None:
        self.begun = self.failed = 0
        self.semaphore = FairSemaphore(places)
        self.lost: dict[str, Lost] = {}
        self._files, self._now, self._deadline_s = files, now, deadline_s
        self._failures = Failures()
        self._threads = ThreadPoolExecutor(places + _LATE, thread_name_prefix="fetch")
        self._late = 0

    def check(self, key: VersionKey) -> None:
        """Refuse a version whose fetch failed recently.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: the recorded error, with the time left as ``retry_after``.
        """
        self._failures.check(key.lora_name, self._now())

    def forget(self, key: VersionKey) -> None:
        """Forget that the version's fetch failed."""
        self._failures.forget(key.lora_name)
        self.lost.pop(key.lora_name, None)

    async def run(self, key: VersionKey, permit: Permit, late: asyncio.Event) -> None:
        """Fetch a version whose permit is granted, without a time limit.

        Args:
            late: event to set when the deadline has passed and the fetch goes on.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: the fetch failed; the error is recorded for the backoff.
            DiskFull: this node's disk has no room.
        """
        self.begun += 1
        fetch = asyncio.get_running_loop().run_in_executor(self._threads, self._files.fetch, key)
        try:
            await asyncio.wait({fetch}, timeout=self._deadline_s)
            if not fetch.done():
                self.failed += 1
                await self._wait_late(fetch, permit, late)
            fetch.result()
        except (BlobNotFound, DigestMismatch, StoreUnavailable) as error:
            self.failed += not late.is_set()
            self._failures.note(key.lora_name, error, self._now())
            self._note_lost(key, error)
            raise
        self.forget(key)

    def _note_lost(self, key: VersionKey, error: StorageError) -> None:
        if isinstance(error, BlobNotFound | DigestMismatch) and len(self.lost) < MOST_FAILURES:
            self.lost[key.lora_name] = Lost(key, missing=isinstance(error, BlobNotFound))

    async def _wait_late(self, fetch: asyncio.Future[None], permit: Permit, late: asyncio.Event) -> None:
        late.set()
        self._late += 1
        try:
            if self._late <= _LATE:
                self.semaphore.leave(permit)
            await asyncio.wait({fetch})
        finally:
            self._late -= 1
