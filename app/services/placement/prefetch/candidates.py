"""Which versions to bring towards the engine next. Pure; the caller brings the time, and what is there already.

In this order: versions that an alias has just been moved to; what tenants' recent requests predict; what was there
before the engine started.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from app.services.placement.prefetch.prediction import Predictor

#: Versions on their way at the same time, and seconds after which one that has not come is not waited for.
AT_ONCE = 16
_COMING_S = 10.0
#: A version that was looked at is not looked at again for this long, unless it was evicted.
_AGAIN_S = 60.0
_MOST_LOOKED_AT = 10_000
#: Predictions of one tenant at a time, and tenants.
_PREDICTED = 2
_TENANTS_AT_ONCE = 100
_MOST_TENANTS = 1_000
#: Moves that wait, of all tenants and of one.
_MOVES = 64
_TENANT_MOVES = 4


class Candidates:
    """Everything in it is bounded, by tenant where a tenant could fill it. Times are as in :class:`Predictor`."""

    def __init__(self) -> None:
        self._predictor = Predictor()
        #: Tenants that have asked for something since they were last looked at.
        self._active: OrderedDict[str, None] = OrderedDict()
        #: Versions that aliases lead to now -> the tenant's id.
        self._moves: OrderedDict[int, int] = OrderedDict()
        self._before: OrderedDict[int, None] = OrderedDict()
        #: Version ids -> when they were looked at, the oldest first; and those of them that have not come yet.
        self._looked_at: OrderedDict[int, float] = OrderedDict()
        self._coming: set[int] = set()

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._active or self._moves or self._before)

    def seen(self, tenant: str, version_id: int, now: float) -> None:
        """A request of the tenant named this version. Some microseconds."""
        self._predictor.seen(tenant, version_id, now)
        self._active[tenant] = None
        if len(self._active) > _MOST_TENANTS:
            self._active.popitem(last=False)

    def moved(self, version_id: int, tenant_id: int) -> None:
        """An alias of the tenant leads to this version now; of many moves the tenant's latest count."""
        self._moves.pop(version_id, None)
        self._moves[version_id] = tenant_id
        if Counter(self._moves.values())[tenant_id] > _TENANT_MOVES:
            del self._moves[next(known for known, owner in self._moves.items() if owner == tenant_id)]
        if len(self._moves) > _MOVES:
            self._moves.popitem(last=False)
        self.look_again(version_id)

    def begin_again(self, version_ids: Iterable[int]) -> None:
        """The engine has started and holds nothing: these were used before it did, the most recently used first."""
        self._before = OrderedDict.fromkeys(version_ids)
        self._looked_at.clear()
        self._coming.clear()

    def take(self, now: float, there: Collection[int]) -> list[int]:
        """The versions to ask for now, the likeliest first, as far as enough of those before have come.

        Args:
            there: versions that are where they should be, or on their way.
        """
        self._expire(now, there)
        places = AT_ONCE - len(self._coming)
        wanted: list[int] = []
        if places <= 0:
            return wanted
        for version_id in chain(self._pop_moves(), self._pop_predictions(now), self._pop_before()):
            if version_id in self._looked_at:
                continue
            self._looked_at[version_id] = now
            if version_id not in there:
                wanted.append(version_id)
                if len(wanted) == places:
                    break
        self._coming.update(wanted)
        return wanted

    def no_room(self) -> None:
        """What is left to take would not fit."""
        self._active.clear()
        self._moves.clear()
        self._before.clear()

    def look_again(self, version_id: int) -> None:
        """A version may not be in the engine any more: it may be looked at again."""
        self._looked_at.pop(version_id, None)
        self._coming.discard(version_id)

    def forget(self, version_ids: Collection[int]) -> None:
        """Remove every trace of versions that are gone."""
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
        self._coming = {one for one in self._coming if one not in there and self._looked_at[one] >= late}

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
