"""Key watch: cancel requests of API keys that were revoked, expired, or belong to a disabled or deleted tenant.

It also cancels requests of sessions that have ended. Two queries cover all requests in progress, so they also find
changes that another node made.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from cachetools import FIFOCache

from app.database import keys, sessions
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import Unauthenticated
from app.services.access.sessions import IDLE

#: Seconds between two checks, so that requests end within one second of their key.
EVERY_S = 0.4
_REMEMBERED = 10_000
#: Id of a key, and the session in which it is used.
_Credential = tuple[str, str | None]
_ENDED = "The API key is no longer valid. Send the request again with a valid key."


class KeyWatch:
    """Requests in progress on this node, by API key and session."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._running: dict[_Credential, set[asyncio.Timeout]] = {}
        #: Keys whose requests were cancelled, the latest ones.
        self._ended = FIFOCache[str, None](_REMEMBERED)

    @asynccontextmanager
    async def holding(self, key_id: str, session: str | None = None) -> AsyncGenerator[None]:
        """Run the block while the key works and the session is open, and cancel it when one of them ends.

        Raises:
            Unauthenticated: the key stopped working, or the session ended.
        """
        end, credential = asyncio.timeout(None), (key_id, session)
        # The key was authenticated just now: its tenant may have been enabled again.
        self._ended.pop(key_id, None)
        try:
            async with end:
                self._running.setdefault(credential, set()).add(end)
                try:
                    yield
                finally:
                    self._leave(credential, end)
        except TimeoutError:
            if not end.expired():
                raise
            raise Unauthenticated(_ENDED) from None

    async def check(self) -> None:
        """Cancel the requests of every key that no longer works, and of every session that has ended.

        Raises:
            RegistryUnavailable
        """
        if not self._running:
            return
        credentials = set(self._running)
        hmacs = {session for _, session in credentials if session is not None}
        async with self._database.read() as connection:
            at = self._clock()
            working_ids = await keys.working_keys(connection, {key_id for key_id, _ in credentials}, now=at)
            opened = await sessions.open_sessions(connection, hmacs, now=at, idle_since=at - IDLE) if hmacs else set()
        now = asyncio.get_running_loop().time()
        for key_id, session in credentials:
            if key_id in working_ids and (session is None or session in opened):
                continue
            # Cancel each request once, even if it takes long to release its resources.
            for end in self._running.pop((key_id, session), ()):
                self._ended[key_id] = None
                end.reschedule(now)

    def ended(self, key_id: str) -> bool:
        """Return whether requests of the key were cancelled and none has started since."""
        return key_id in self._ended

    def _leave(self, credential: "_Credential", end: asyncio.Timeout) -> None:
        running = self._running.get(credential, set())
        running.discard(end)
        if not running:
            self._running.pop(credential, None)
