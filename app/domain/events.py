"""Events of the feed, and a sequencer that delivers them in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

#: Seconds to wait for a missing id, which may belong to an uncommitted transaction.
GAP_S = 2.0
#: Seconds for which a skipped id is still looked up.
LATE_S = 60.0
_MOST_SKIPPED = 1000

#: Prefixes of events about keys, sessions and the tenant itself; a tenant's key does not receive them.
_PRIVATE = ("key.", "session.", "tenant.")
#: Events for the audit trail only, because they record no change.
_SILENT = frozenset({"key.use", "key.refuse"})


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the feed.

    Attributes:
        id: id in the audit trail, from which a client can resume; None for engine events, which only one node knows.
        type: action in the audit trail, or ``engine.load``, ``engine.evict``, ``engine.unload`` or
            ``engine.load_failed``.
        tenant: slug of the owner; None for platform events.
        node: node of the engine; None for changes of the registry.
        seconds: duration of a load.
    """

    id: int | None
    at: datetime
    type: str
    tenant: str | None
    subject: str
    actor: str | None = None
    before: Any = None
    after: Any = None
    node: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Audience:
    """Filter of a subscriber.

    Attributes:
        tenant: slug of the only tenant to receive events of; None for all.
        since: creation time of that tenant, because an earlier tenant may have had the same slug.
        whole: True to include events about keys and the tenant itself.
    """

    tenant: str | None = None
    since: datetime | None = None
    whole: bool = True

    def hears(self, event: Event) -> bool:
        if event.type in _SILENT:
            return False
        if self.tenant is not None and event.tenant != self.tenant:
            return False
        if self.since is not None and event.at < self.since:
            return False
        return self.whole or not event.type.startswith(_PRIVATE)


class Numbered(Protocol):
    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=Numbered)


class Sequencer(Generic[Item]):
    """Reorder buffer: releases rows in the order of their ids, each once, although transactions commit out of order.

    Ids are assigned at the insert and become visible at the commit. Rows behind a missing id wait up to ``GAP_S`` for
    it. After that the id counts as rolled back. If it appears later, it is delivered late.

    Args:
        position: last id that was released; all ids up to it count as released.
        clock: monotonic clock in seconds.
    """

    def __init__(self, position: int, *, clock: Callable[[], float]) -> None:
        self.position = position
        self._clock = clock
        self._gap: tuple[int, float] | None = None
        self._skipped: dict[int, float] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Skipped ids that may still appear."""
        limit = self._clock() - LATE_S
        self._skipped = {identity: since for identity, since in self._skipped.items() if since > limit}
        return tuple(self._skipped)

    def late(self, rows: Sequence[Item]) -> list[Item]:
        """Return the rows that were ``missing`` and have appeared."""
        return [row for row in rows if self._skipped.pop(row.id, None) is not None]

    def release(self, rows: Sequence[Item]) -> list[Item]:
        """Return the rows that can be delivered now.

        Args:
            rows: rows above ``position``, by id.
        """
        out = []
        for row in rows:
            if row.id > self.position + 1 and not self._waited():
                break
            self._skip(range(self.position + 1, row.id))
            out.append(row)
            self.position, self._gap = row.id, None
        return out

    def _waited(self) -> bool:
        now = self._clock()
        if self._gap is None or self._gap[0] != self.position:
            self._gap = (self.position, now)
        return now - self._gap[1] >= GAP_S

    def _skip(self, ids: range) -> None:
        now = self._clock()
        for identity in ids[-_MOST_SKIPPED:]:
            self._skipped[identity] = now
