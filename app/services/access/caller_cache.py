"""Authentication cache with a TTL below one second, so that a busy key does not cost a query per request."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from cachetools import TLRUCache

from app.domain.access import Caller
from app.domain.clock import is_past


class _Entry(NamedTuple):
    caller: Caller
    expires_at: datetime | None
    until: float


class CallerCache:
    """Cache of authenticated callers by the hash of their key, or by the name of their session.

    An entry is valid for ``ttl_s`` from the start of its lookup. This bounds how long a key that was revoked on another
    node still works on this one. Refusals are not cached. ``clear`` makes a change on this node effective at once.
    """

    def __init__(
        self, *, ttl_s: float = 0.9, capacity: int = 10_000, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s, self._monotonic = ttl_s, monotonic
        self._entries = TLRUCache[str, _Entry, float](capacity, lambda _hash, entry, _now: entry.until, monotonic)
        self._generation = 0

    def begin(self) -> tuple[int, float]:
        """Return a token for ``put``. Call it before the lookup."""
        return self._generation, self._monotonic() + self._ttl_s

    def put(self, begun: tuple[int, float], hash_: str, caller: Caller, expires_at: datetime | None) -> None:
        generation, until = begun
        # A lookup that overlapped a change may have read the old state.
        if generation == self._generation:
            self._entries[hash_] = _Entry(caller, expires_at, until)

    def get(self, hash_: str, now: datetime) -> Caller | None:
        entry = self._entries.get(hash_)
        return entry.caller if entry and not is_past(entry.expires_at, now) else None

    def forget_session(self, session: str) -> None:
        """Remove the caller of a session, and keep all others."""
        self._generation += 1
        for name in [name for name, entry in self._entries.items() if entry.caller.session == session]:
            self._entries.pop(name, None)

    def clear(self) -> None:
        self._generation += 1
        self._entries.clear()
