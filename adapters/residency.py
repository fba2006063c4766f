"""Who has a place in a tier of memory: planning only, no I/O, no clock, no asyncio.

A tier is what adapters are copied into: host memory, counted in bytes, or the engine's slots, one each. Left to
itself an engine evicts adapters that are in use and reads their files again in the middle of a step. So it is never
left a choice: :class:`Residency` plans what a tier holds, who may be evicted from it and who goes first.
"""

import heapq
import math
from dataclasses import dataclass
from enum import Enum

#: What a load costs at least, so that an unknown cost can be compared.
_LEAST_COST_S = 1e-3

#: Outdated heap entries that are not worth a clean-up.
_LEAST_HEAP = 64


class Admission(Enum):
    """What :meth:`Residency.admit` decided."""

    RESIDENT = "resident"  # loaded: run
    LOADING = "loading"  # somebody else's load is under way: wait for it
    LOAD = "load"  # evict what the decision names, then load; end with `loaded` or `failed`
    WAIT = "wait"  # too much is leased or loading: ask again after a `release` or `failed`


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request.

    Attributes:
        admission: what to do.
        evict: version ids to take out of the tier before the load; their room is given away already.
    """

    admission: Admission
    evict: tuple[int, ...] = ()


@dataclass(slots=True)
class _Place:
    """One version in the tier.

    Attributes:
        uses: binary logarithm of its uses, each counted ``2 ** (seconds / half-life)`` times.
        idle: number of its entry in the heap of who may be evicted; None while it is leased or loading.
    """

    size: int
    cost_s: float
    uses: float
    loading: bool = True
    doomed: bool = False
    idle: int | None = None


class Residency:
    """The plan of one tier. The sizes of its residents, those being loaded included, never exceed the capacity.

    Each admission that is not WAIT takes a lease, given back by one ``release``, also when the load fails.
    A version that is leased or being loaded is never evicted; a pin is a lease that its holder keeps.

    Whoever is worth the least goes first: uses x seconds of a reload / size, as in GreedyDual-Size with frequency
    (Cherkasova 1998, after Cao and Irani 1997). In place of its clock, a use counts half as much after each half-life
    (as in LRFU, Lee et al. 2001), so that yesterday's favourite goes. All decay at the same pace, hence their order
    does not change while nobody uses them (forward decay, Cormode et al. 2009), and a heap of the idle ones finds
    the first in O(log n).

    Two exceptions to the capacity. A version larger than all of it is loaded when it would be alone, so that it is
    not stuck for ever; and one that turned out larger than planned counts with its true size: later loads make good.

    Times are seconds of any one clock that does not go backwards, such as ``time.monotonic``.

    Args:
        capacity: in units of size: slots, each version of size 1, or bytes.
        half_life_s: seconds after which a use counts half. With the default, and memory for 500 of 100,000 adapters of
            power-law popularity, 46% of the uses are hits; with a second, which is all but LRU, 42%.

    Attributes:
        hits: admissions of a version that was there.
        misses: admissions that started a load, or had to wait for one.
        evictions: versions that made room for others, or that the caller dropped.

    Raises:
        ValueError: a capacity below 1, or a half-life of 0 or less.
    """

    def __init__(self, capacity: int, *, half_life_s: float = 600.0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity}, allowed 1 or more")
        if not half_life_s > 0:
            raise ValueError(f"half_life_s: found {half_life_s}, allowed more than 0")
        self.hits = self.misses = self.evictions = 0
        self._capacity, self._half_life_s = capacity, half_life_s
        self._used = self._idle_used = self._count = 0
        self._places: dict[int, _Place] = {}
        self._leases: dict[int, int] = {}
        #: (worth, number, version id); an entry whose number is not its place's is outdated.
        self._idle: list[tuple[float, int, int]] = []

    def __contains__(self, version_id: int) -> bool:
        """Whether the version has a place, were it only being loaded."""
        return version_id in self._places

    def __len__(self) -> int:
        """Versions that have a place."""
        return len(self._places)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def used(self) -> int:
        """Sizes of all residents together; of those being loaded, as planned."""
        return self._used

    @property
    def residents(self) -> frozenset[int]:
        """Version ids that have a place, those being loaded included."""
        return frozenset(self._places)

    @property
    def loaded_ids(self) -> frozenset[int]:
        """Version ids that have a place and are loaded."""
        return frozenset(version_id for version_id, place in self._places.items() if not place.loading)

    def leases(self, version_id: int) -> int:
        """How many leases are out; those of a failed load count until they are given back."""
        return self._leases.get(version_id, 0)

    def size(self, version_id: int) -> int:
        """What the version takes of the capacity; 0 if it has no place."""
        place = self._places.get(version_id)
        return place.size if place else 0

    def would_fit(self, size: int) -> bool:
        """Whether there is room for so much without evicting anybody."""
        return self._used + size <= self._capacity

    def admit(self, version_id: int, size: int = 1, *, now: float, cost_s: float = 0.0) -> Decision:
        """Lease a version for one request, and say what must happen before it can run.

        Args:
            size: what it is planned to take; a version that has a place keeps the size it has.
            cost_s: seconds that it would take to load it again; 0: as known, or next to nothing.

        Raises:
            ValueError: a size below 1.
        """
        _checked(size)
        evicted: tuple[int, ...] = ()
        if place := self._places.get(version_id):
            admission = Admission.LOADING if place.loading else Admission.RESIDENT
            self._use(place, now, cost_s)
        elif not self._has_room(size):
            return Decision(Admission.WAIT)
        else:
            admission, evicted = Admission.LOAD, self._make_room(size)
            self._places[version_id] = _Place(size, max(cost_s, _LEAST_COST_S), now / self._half_life_s)
            self._used += size
        self._leases[version_id] = self._leases.get(version_id, 0) + 1
        if admission is Admission.RESIDENT:
            self.hits += 1
        else:
            self.misses += 1
        return Decision(admission, evicted)

    def loaded(self, version_id: int, size: int | None = None) -> bool:
        """The load is done. True: it was removed meanwhile and nobody waits, so take it out of the tier.

        Args:
            size: what it really takes; None: as planned.

        Raises:
            ValueError: no load of it is under way, or a size below 1.
        """
        place = self._loading(version_id)
        size = place.size if size is None else _checked(size)
        self._used += size - place.size
        place.loading, place.size = False, size
        self._rest(version_id, place)
        return self._take_out(version_id)

    def failed(self, version_id: int) -> None:
        """The load failed, and the tier holds nothing of the version: its room is free again.

        Raises:
            ValueError: no load of it is under way.
        """
        self._used -= self._loading(version_id).size
        del self._places[version_id]

    def release(self, version_id: int, *, now: float) -> bool:
        """Give one lease back. True: it was the last of a removed version, so take it out of the tier.

        Raises:
            ValueError: there is no lease.
        """
        leases = self._leases.get(version_id, 0)
        if not leases:
            raise ValueError(f"version {version_id} has no lease to release")
        if leases > 1:
            self._leases[version_id] = leases - 1
        else:
            del self._leases[version_id]
        if place := self._places.get(version_id):
            # A request that ran for long was a use up to its end.
            place.uses = max(place.uses, now / self._half_life_s)
            self._rest(version_id, place)
        return self._take_out(version_id)

    def remove(self, version_id: int) -> bool:
        """A version was deleted. True: take it out of the tier now; else a later call says so, if it is resident."""
        if place := self._places.get(version_id):
            place.doomed = True
        return self._take_out(version_id)

    def evict(self, version_id: int) -> bool:
        """The caller drops a version by itself. True: it was idle and its room is free; False: nothing changed."""
        place = self._places.get(version_id)
        if place is None or place.idle is None:
            return False
        self._drop(version_id)
        self.evictions += 1
        return True

    def _loading(self, version_id: int) -> _Place:
        place = self._places.get(version_id)
        if place is None or not place.loading:
            raise ValueError(f"version {version_id} is not being loaded")
        return place

    def _use(self, place: _Place, now: float, cost_s: float) -> None:
        place.cost_s = cost_s or place.cost_s
        if place.idle is not None:
            place.idle = None
            self._idle_used -= place.size
        # log2(2**uses + 2**this), where the powers themselves would overflow after days.
        this = now / self._half_life_s
        more, less = max(place.uses, this), min(place.uses, this)
        place.uses = more + math.log2(1 + 2 ** (less - more))

    def _rest(self, version_id: int, place: _Place) -> None:
        """Let a version be evicted, if it is loaded and without a lease."""
        if place.loading or version_id in self._leases:
            return
        self._count += 1
        place.idle = self._count
        self._idle_used += place.size
        worth = place.uses + math.log2(max(place.cost_s, _LEAST_COST_S) / place.size)
        heapq.heappush(self._idle, (worth, self._count, version_id))
        if len(self._idle) > 2 * len(self._places) + _LEAST_HEAP:
            self._idle = [entry for entry in self._idle if self._is_current(entry)]
            heapq.heapify(self._idle)

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place.idle == entry[1]

    def _has_room(self, size: int) -> bool:
        busy = self._used - self._idle_used
        return busy + size <= self._capacity or not busy

    def _make_room(self, size: int) -> tuple[int, ...]:
        evicted = []
        while not self.would_fit(size) and self._idle_used:
            entry = heapq.heappop(self._idle)
            if self._is_current(entry):
                self._drop(entry[2])
                evicted.append(entry[2])
        self.evictions += len(evicted)
        return tuple(evicted)

    def _drop(self, version_id: int) -> None:
        place = self._places.pop(version_id)
        self._used -= place.size
        self._idle_used -= place.size

    def _take_out(self, version_id: int) -> bool:
        place = self._places.get(version_id)
        if place is None or not place.doomed or place.idle is None:
            return False
        self._drop(version_id)
        return True


def _checked(size: int) -> int:
    if size < 1:
        raise ValueError(f"size: found {size}, allowed 1 or more")
    return size
