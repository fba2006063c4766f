"""Access log: audit rows for requests that change nothing (uses of platform keys, and denied requests).

Entries are aggregated for a minute, into at most one row for each key and kind. A flood of a million requests
therefore writes one row. Nothing is written while a request runs, so logging adds no latency to an answer.
"""

from collections import Counter
from dataclasses import dataclass, field

from app.database import audit
from app.database.session import Database
from app.domain.access import Caller
from app.domain.clock import Clock, utc_now

#: Seconds between two writes.
EVERY_S = 60.0

#: Maximum number of distinct requests that a row names; it only counts the rest.
_NAMED = 20
#: Maximum characters of a name, as in the database table.
_LONGEST = 200
#: Maximum pending rows; further keys are not logged. A key has at most one row of a kind, and a tenant can create
#: about a thousand keys a day, see own_keys.py. Callers of one tenant therefore stay far below this cap.
_MOST = 100_000


@dataclass(slots=True)
class _Entry:
    tenant: str | None
    count: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, times: int = 1) -> None:
        self.count += times
        if name in self.named or len(self.named) < _NAMED:
            self.named[name] += times

    def add_all(self, other: "_Entry") -> None:
        unnamed = other.count - other.named.total()
        for name, times in other.named.items():
            self.add(name, times)
        self.count += unnamed


class AccessLog:
    """Access log of one server: entries since the last write."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._entries: dict[tuple[str, str], _Entry] = {}

    def used(self, caller: Caller, request: str) -> None:
        """Record a request that needs a platform key, e.g. ``GET /admin/tenants``."""
        self._add(caller, "key.use", request)

    def refused(self, caller: Caller, reason: str) -> None:
        """Record a denied request: another tenant's resource, or one outside the key's scopes.

        The row is the same whether or not the resource exists.

        Args:
            reason: the message of the refusal.
        """
        self._add(caller, "key.refuse", reason)

    async def write(self) -> None:
        """Write a row for each key and kind. Entries that could not be written stay for the next call.

        Raises:
            RegistryUnavailable
        """
        taken, self._entries = self._entries, {}
        if not taken:
            return
        try:
            async with self._database.write() as connection:
                for (actor, action), entry in taken.items():
                    await audit.record(
                        connection,
                        at=self._clock(),
                        actor=actor,
                        action=action,
                        tenant=entry.tenant,
                        subject=next(iter(entry.named)),
                        after={"count": entry.count, "of": dict(entry.named)},
                    )
        except BaseException:
            for key, newer in self._entries.items():
                if key in taken:
                    taken[key].add_all(newer)
                else:
                    taken[key] = newer
            self._entries = taken
            raise

    def _add(self, caller: Caller, action: str, name: str) -> None:
        key = (caller.key_id, action)
        if (entry := self._entries.get(key)) is None:
            if len(self._entries) >= _MOST:
                return
            entry = self._entries[key] = _Entry(caller.tenant_slug)
        entry.add(name[:_LONGEST])
