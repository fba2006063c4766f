"""Events of the feed, and the pure rule of the order in which they are let out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

#: How long a missing id may be that of a transaction which has not committed.
GAP_S = 2.0
#: How long one that was passed over is still looked for.
LATE_S = 60.0
_MOST_SKIPPED = 1000

#: Of these a tenant's key hears nothing: they are about keys and the tenant itself, not about adapters.
_PRIVATE = ("key.", "tenant.")
#: In the audit trail only: they change nothing.
_SILENT = frozenset({"key.use", "key.refuse"})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        id: its place in the audit trail, to go on from; None for what only one node's engine knows.
        type: the audit trail's action, or ``engine.load``, ``engine.evict``, ``engine.unload``, ``engine.load_failed``.
        tenant: the owner's slug; None for the platform's own.
        node: whose engine; None for changes of the registry.
        seconds: how long a load took.
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
    """Who listens.

    Attributes:
        tenant: hears of this tenant only; None: of everything.
        since: when that tenant was made: its slug may have been another's before.
        whole: whether also of keys and the tenant itself.
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
    """Lets rows out in the order of their ids, each once, although transactions commit in another order.

    Ids are drawn at the insert and appear at the commit. A missing id may still come: what is behind it waits up
    to ``GAP_S`` for it. After that it counts as rolled back; should it come all the same, it is let out late.

    Args:
        position: everything up to this id is out.
    """

    def __init__(self, position: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.position = position
        self._clock = clock
        self._gap: tuple[int, float] | None = None
        self._skipped: dict[int, float] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Ids that were passed over and may still come."""
        limit = self._clock() - LATE_S
        self._skipped = {identity: since for identity, since in self._skipped.items() if since > limit}
        return tuple(self._skipped)

    def late(self, rows: Sequence[Item]) -> list[Item]:
        """Of the ``missing`` those that came."""
        return [row for row in rows if self._skipped.pop(row.id, None) is not None]

    def release(self, rows: Sequence[Item]) -> list[Item]:
        """Those of the rows above ``position``, given by id, that may go out now."""
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
