"""Ends the work of API keys that stop working: revoked, expired, or of a tenant that was disabled or deleted.

One query for all keys that have work under way finds what another node has changed.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from app.database import keys
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import Unauthenticated

#: Seconds between two looks: work ends within a second of its key.
EVERY_S = 0.4
_REMEMBERED = 10_000
_ENDED = "The API key does not work any more. Send the request again with one that does."


class KeyWatch:
    """The work under way of each key on this node."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._running: dict[str, set[asyncio.Timeout]] = {}
        #: Keys whose work was ended, the latest last.
        self._ended: dict[str, None] = {}

    @asynccontextmanager
    async def holding(self, key_id: str) -> AsyncGenerator[None]:
        """Run the block for as long as the key works; the block is cancelled when it does not.

        Raises:
            Unauthenticated: the key stopped working.
        """
        end = asyncio.timeout(None)
        # It was authenticated just now: its tenant may be enabled again.
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
        """End the work of every key that does not work any more.

        Raises:
            RegistryUnavailable
        """
        if not self._running:
            return
        asked = set(self._running)
        async with self._database.read() as connection:
            working = await keys.working_keys(connection, asked, now=self._clock())
        now = asyncio.get_running_loop().time()
        for key_id in asked - working:
            # Each is ended once, however long it takes to give up what it holds.
            for end in self._running.pop(key_id, ()):
                self._ended[key_id] = None
                end.reschedule(now)
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def ended(self, key_id: str) -> bool:
        """Whether work of the key was ended, and not begun again since."""
        return key_id in self._ended

    def _leave(self, key_id: str, end: asyncio.Timeout) -> None:
        running = self._running.get(key_id, set())
        running.discard(end)
        if not running:
            self._running.pop(key_id, None)
