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
#: Maximum pending rows. Only administrators create keys, so a caller cannot reach this cap.
_MOST = 100_000


@dataclass(slots=True)
class _Gathered:
    tenant: str | None
    count: int = 0
    named: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, times: int = 1) -> None:
        self.count += times
        if what in self.named or len(self.named) < _NAMED:
            self.named[what] += times

    def add_all(self, other: "_Gathered") -> None:
        unnamed = other.count - other.named.total()
        for what, times in other.named.items():
            self.add(what, times)
        self.count += unnamed


class AccessLog:
    """Access log of one server: entries since the last write."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._gathered: dict[tuple[str, str], _Gathered] = {}

    def used(self, caller: Caller, what: str) -> None:
        """Record a request that needs a platform key, e.g. ``GET /admin/tenants``."""
        self._gather(caller, "key.use", what)

    def refused(self, caller: Caller, what: str) -> None:
        """Record a denied request: another tenant's resource, or one outside the key's scopes.

        The row is the same whether or not the resource exists.
        """
        self._gather(caller, "key.refuse", what)

    async def write(self) -> None:
        """Write a row for each key and kind. Entries that could not be written stay for the next call.

        Raises:
            RegistryUnavailable
        """
        taken, self._gathered = self._gathered, {}
        if not taken:
            return
        try:
            async with self._database.write() as connection:
                for (actor, action), gathered in taken.items():
                    await audit.record(
                        connection,
                        at=self._clock(),
                        actor=actor,
                        action=action,
                        tenant=gathered.tenant,
                        subject=next(iter(gathered.named)),
                        after={"count": gathered.count, "of": dict(gathered.named)},
                    )
        except BaseException:
            for key, since in self._gathered.items():
                if key in taken:
                    taken[key].add_all(since)
                else:
                    taken[key] = since
            self._gathered = taken
            raise

    def _gather(self, caller: Caller, action: str, what: str) -> None:
        key = (caller.key_id, action)
        if (gathered := self._gathered.get(key)) is None:
            if len(self._gathered) >= _MOST:
                return
            gathered = self._gathered[key] = _Gathered(caller.tenant_slug)
        gathered.add(what[:_LONGEST])
