"""Rows of the audit trail for what changes nothing: uses of platform keys, and callers that isolation turned away.

They are gathered for a minute, at most one row per key and kind, so that whoever calls a million times writes no
million rows; and as nothing is written while a request runs, no answer takes longer because of what it was refused.
"""

from collections import Counter
from dataclasses import dataclass, field

from app.database import audit
from app.database.session import Database
from app.domain.access import Caller
from app.domain.clock import Clock, utc_now

#: Seconds between two times that rows are written.
EVERY_S = 60.0

#: Different things that one row names; of the rest it says only that there were some.
_NAMED = 20
#: Characters of a name; the table's own limit.
_LONGEST = 200
#: Keys and kinds that wait for their row. Keys are made by administrators, so this many come of no caller's doing.
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
    """What one server gathered since it last wrote."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._gathered: dict[tuple[str, str], _Gathered] = {}

    def used(self, caller: Caller, what: str) -> None:
        """A platform key did what needs one, e.g. ``GET /admin/tenants``."""
        self._gather(caller, "key.use", what)

    def refused(self, caller: Caller, what: str) -> None:
        """A caller wanted what is not its own, or what its key may not; whether that exists does not matter."""
        self._gather(caller, "key.refuse", what)

    async def write(self) -> None:
        """Write a row for each key and kind; what cannot be written stays for the next time.

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
