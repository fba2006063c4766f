"""Fetches from the store: in turn, within a deadline, and not again at once after a failure."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from adapters.cache.failures import MOST_FAILURES, Failures
from adapters.cache.files import VersionFiles
from adapters.errors import BlobNotFound, DigestMismatch, StorageError, StoreUnavailable
from adapters.fair_semaphore import FairSemaphore, Permit
from adapters.identity import VersionKey

#: Seconds after which a fetch that is late may have come to an end.
RETRY_S = 5
#: Late fetches that no longer take up a place.
_LATE = 16


@dataclass(frozen=True, slots=True)
class Lost:
    """A version whose bytes the store does not have, or has others in their place.

    Attributes:
        missing: no bytes; False: wrong ones.
    """

    key: VersionKey
    missing: bool


class Fetches:
    """Fetches in threads of their own: a store that stalls holds up nothing else.

    A fetch that passes its deadline goes on, as a large version may need it, but its place is given to others. That
    is done for 16 of them: then a store that answers nothing is asked no more until threads come back.

    Args:
        now: a clock that does not go backwards, in seconds.
        deadline_s: seconds after which a fetch is late.
        places: fetches at the same time.

    Attributes:
        turns: who may fetch.
        begun: how many have begun since the process did.
        failed: how many of them failed or passed the deadline.
        lost: versions whose last fetch found no bytes in the store (BlobNotFound) or others (DigestMismatch).
    """

    def __init__(self, files: VersionFiles, now: Callable[[], float], *, deadline_s: float, places: int) -> None:
        self.begun = self.failed = 0
        self.turns = FairSemaphore(places)
        self.lost: dict[str, Lost] = {}
        self._files, self._now, self._deadline_s = files, now, deadline_s
        self._failures = Failures()
        self._threads = ThreadPoolExecutor(places + _LATE, thread_name_prefix="fetch")
        self._late = 0

    def check(self, key: VersionKey) -> None:
        """Refuse a version whose fetch failed a moment ago.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: as it was then, with the time that is left.
        """
        self._failures.check(key.lora_name, self._now())

    def forget(self, key: VersionKey) -> None:
        """Forget that the version's fetch failed."""
        self._failures.forget(key.lora_name)
        self.lost.pop(key.lora_name, None)

    async def run(self, key: VersionKey, turn: Permit, late: asyncio.Event) -> None:
        """Fetch a version whose turn has begun, however long it takes.

        Args:
            late: set when the deadline has passed and the fetch goes on.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: remembered for a while.
            DiskFull
        """
        self.begun += 1
        fetch = asyncio.get_running_loop().run_in_executor(self._threads, self._files.fetch, key)
        try:
            await asyncio.wait({fetch}, timeout=self._deadline_s)
            if not fetch.done():
                self.failed += 1
                await self._wait_late(fetch, turn, late)
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

    async def _wait_late(self, fetch: asyncio.Future[None], turn: Permit, late: asyncio.Event) -> None:
        late.set()
        self._late += 1
        try:
            if self._late <= _LATE:
                self.turns.leave(turn)
            await asyncio.wait({fetch})
        finally:
            self._late -= 1
