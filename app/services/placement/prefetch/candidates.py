"""Prefetch candidates: the order in which versions are staged for the engine. Pure.

The caller passes the time and the versions that are present. Order of priority:

1. versions that an alias was just moved to
2. versions that a tenant's recent requests predict
3. the working set from before the engine started
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from app.services.placement.prefetch.prediction import Predictor

#: Most versions in transit at once, and seconds after which a version in transit no longer counts.
AT_ONCE = 16
_COMING_S = 10.0
#: Seconds for which a version that was considered is skipped, unless it is evicted.
_AGAIN_S = 60.0
_MOST_LOOKED_AT = 10_000
#: Most predictions for one tenant in a round, and most tenants in a round.
_PREDICTED = 2
_TENANTS_AT_ONCE = 100
_MOST_TENANTS = 1_000
#: Most queued alias moves, of all tenants and of one.
_MOVES = 64
_TENANT_MOVES = 4


class Candidates:
    """Bounded queue of prefetch candidates.

    Every collection has a limit, and a limit per tenant where one tenant could fill it. Times follow the rules of
    :class:`Predictor`.
    """

    def __init__(self) -> None:
        self._predictor = Predictor()
        #: Tenants with requests since their last prediction.
        self._active: OrderedDict[str, None] = OrderedDict()
        #: Version ids that aliases were moved to -> tenant id.
        self._moves: OrderedDict[int, int] = OrderedDict()
        self._before: OrderedDict[int, None] = OrderedDict()
        #: Version id -> time when it was considered, oldest first. ``_coming`` holds those that are still in transit.
        self._looked_at: OrderedDict[int, float] = OrderedDict()
        self._coming: set[int] = set()

    def __bool__(self) -> bool:
        """Return whether there are candidates."""
        return bool(self._active or self._moves or self._before)

    def seen(self, tenant: str, version_id: int, now: float) -> None:
        """Record that a request of the tenant named this version. Cheap, because it runs for every request."""
        self._predictor.seen(tenant, version_id, now)
        self._active[tenant] = None
        if len(self._active) > _MOST_TENANTS:
            self._active.popitem(last=False)

    def moved(self, version_id: int, tenant_id: int) -> None:
        """Queue a version that an alias of the tenant was moved to. Only the tenant's latest moves are kept."""
        self._moves.pop(version_id, None)
        self._moves[version_id] = tenant_id
        if Counter(self._moves.values())[tenant_id] > _TENANT_MOVES:
            del self._moves[next(queued for queued, owner in self._moves.items() if owner == tenant_id)]
        if len(self._moves) > _MOVES:
            self._moves.popitem(last=False)
        self.look_again(version_id)

    def begin_again(self, version_ids: Iterable[int]) -> None:
        """Reset after an engine start, which leaves the engine empty.

        Args:
            version_ids: working set from before the start, most recently used first.
        """
        self._before = OrderedDict.fromkeys(version_ids)
        self._looked_at.clear()
        self._coming.clear()

    def take(self, now: float, there: Collection[int]) -> list[int]:
        """Pop the versions to stage now, likeliest first, within the limit of versions in transit.

        Args:
            there: versions that are already in place or on their way.
        """
        self._expire(now, there)
        places = AT_ONCE - len(self._coming)
        versions: list[int] = []
        if places <= 0:
            return versions
        for version_id in chain(self._pop_moves(), self._pop_predictions(now), self._pop_before()):
            if version_id in self._looked_at:
                continue
            self._looked_at[version_id] = now
            if version_id not in there:
                versions.append(version_id)
                if len(versions) == places:
                    break
        self._coming.update(versions)
        return versions

    def no_room(self) -> None:
        """Drop all candidates, because the next one would not fit."""
        self._active.clear()
        self._moves.clear()
        self._before.clear()

    def look_again(self, version_id: int) -> None:
        """Allow a version to be considered again, because it may have left the engine."""
        self._looked_at.pop(version_id, None)
        self._coming.discard(version_id)

    def forget(self, version_ids: Collection[int]) -> None:
        """Remove every trace of deleted versions."""
        self._predictor.forget(version_ids)
        for version_id in version_ids:
            self._moves.pop(version_id, None)
            self._before.pop(version_id, None)
            self.look_again(version_id)

    def _expire(self, now: float, there: Collection[int]) -> None:
        while self._looked_at:
            version_id, at = next(iter(self._looked_at.items()))
            if at >= now - _AGAIN_S and len(self._looked_at) <= _MOST_LOOKED_AT:
                break
            self.look_again(version_id)
        late = now - _COMING_S
        self._coming = {key for key in self._coming if key not in there and self._looked_at[key] >= late}

    def _pop_moves(self) -> Iterator[int]:
        while self._moves:
            yield self._moves.popitem(last=False)[0]

    def _pop_predictions(self, now: float) -> Iterator[int]:
        for _ in range(min(len(self._active), _TENANTS_AT_ONCE)):
            tenant, _ = self._active.popitem(last=False)
            yield from self._predictor.likely(tenant, now, most=_PREDICTED)

    def _pop_before(self) -> Iterator[int]:
        while self._before:
            yield self._before.popitem(last=False)[0]
