"""Key watch: cancel requests of API keys that were revoked, expired, or belong to a disabled or deleted tenant.

One query covers all keys with requests in progress, so it also finds changes that another node made.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from cachetools import FIFOCache

from app.database import keys
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import Unauthenticated

#: Seconds between two checks, so that requests end within one second of their key.
EVERY_S = 0.4
_REMEMBERED = 10_000
_ENDED = "The API key is no longer valid. Send the request again with a valid key."


class KeyWatch:
    """Requests in progress on this node, by API key."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._running: dict[str, set[asyncio.Timeout]] = {}
        #: Keys whose requests were cancelled, the latest ones.
        self._ended = FIFOCache[str, None](_REMEMBERED)

    @asynccontextmanager
    async def holding(self, key_id: str) -> AsyncGenerator[None]:
        """Run the block while the key works, and cancel it when the key stops working.

        Raises:
            Unauthenticated: the key stopped working.
        """
        end = asyncio.timeout(None)
        # The key was authenticated just now: its tenant may have been enabled again.
        self._ended.pop(key_id, None)
        try:
            async with end:
                self._running.setdefault(key_id, set()).add(end)
                try:
                    yield
                finally:
                    self._leave(key_id, end)
        except TimeoutError:
            if not end.expired():
                raise
            raise Unauthenticated(_ENDED) from None

    async def check(self) -> None:
        """Cancel the requests of every key that no longer works.

        Raises:
            RegistryUnavailable
        """
        if not self._running:
            return
        key_ids = set(self._running)
        async with self._database.read() as connection:
            working_ids = await keys.working_keys(connection, key_ids, now=self._clock())
        now = asyncio.get_running_loop().time()
        for key_id in key_ids - working_ids:
            # Cancel each request once, even if it takes long to release its resources.
            for end in self._running.pop(key_id, ()):
                self._ended[key_id] = None
                end.reschedule(now)

    def ended(self, key_id: str) -> bool:
        """Return whether requests of the key were cancelled and none has started since."""
        return key_id in self._ended

    def _leave(self, key_id: str, end: asyncio.Timeout) -> None:
        running = self._running.get(key_id, set())
        running.discard(end)
        if not running:
            self._running.pop(key_id, None)
