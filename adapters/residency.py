"""Eviction and admission plan of one memory tier: pure, without I/O, clock or asyncio.

A tier holds copies of adapters: host memory, counted in bytes, or the engine's slots, one for each adapter. By itself
an engine evicts adapters that are in use and reads their files again in the middle of a step. So :class:`Residency`
makes every choice for it: the contents of the tier, the candidates for eviction, and their order.
"""

import heapq
import math
from dataclasses import dataclass
from enum import Enum

#: Lower bound of a reload's cost in seconds, so that unknown costs can be compared.
_LEAST_COST_S = 1e-3

#: Number of outdated heap entries below which the heap is not compacted.
_LEAST_HEAP = 64


class Admission(Enum):
    """Outcome of :meth:`Residency.admit`."""

    RESIDENT = "resident"  # loaded: run
    LOADING = "loading"  # another caller's load is under way: wait for it
    LOAD = "load"  # evict what the decision names, then load; end with `loaded` or `failed`
    WAIT = "wait"  # too much is leased or loading: retry after a `release` or `failed`


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer to one admission request.

    Attributes:
        admission: outcome.
        evict: version ids to remove from the tier before the load; their room is already reassigned.
    """

    admission: Admission
    evict: tuple[int, ...] = ()


@dataclass(slots=True)
class _Place:
    """One version in the tier.

    Attributes:
        uses: binary logarithm of its decayed use count, where each use weighs ``2 ** (seconds / half-life)``.
        idle: number of its entry in the eviction heap; None while it is leased or loading.
    """

    size: int
    cost_s: float
    uses: float
    loading: bool = True
    doomed: bool = False
    idle: int | None = None


class Residency:
    """Plan of one tier. The total size of its residents, including loading ones, never exceeds the capacity.

    Each admission except WAIT takes a lease. The caller returns it with one ``release``, also when the load fails. A
    version that is leased or loading is never evicted. A pin is a lease that its holder keeps.

    The version of the least value is evicted first, where value is uses x reload seconds / size. This is
    GreedyDual-Size with frequency (Cherkasova 1998, after Cao and Irani 1997). Exponential decay replaces its clock:
    the weight of a use halves after each half-life (as in LRFU, Lee et al. 2001), so that former favourites are
    evicted. All values decay at the same rate, so the order of idle versions does not change (forward decay, Cormode et
    al. 2009). A heap of the idle versions finds the victim in O(log n).

    The capacity has two exceptions:

    - A version larger than the whole capacity is loaded if it would be alone, so that it does not wait forever.
    - A version that is larger than planned counts with its true size. Later loads make up for it.

    Times are seconds of any monotonic clock, such as ``time.monotonic``.

    Args:
        capacity: capacity in units of size: slots (each version has size 1) or bytes.
        half_life_s: seconds after which the weight of a use halves. See
            docs/decisions/0011-evict-by-decayed-use-and-reload-cost.md.

    Attributes:
        hits: admissions of a loaded version.
        misses: admissions that started a load or had to wait for one.
        evictions: versions removed to make room, or evicted by the caller.

    Raises:
        ValueError: a capacity below 1, or a half-life of 0 or less.
    """

    def __init__(self, capacity: int, *, half_life_s: float = 600.0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, but must be 1 or more.")
        if not half_life_s > 0:
            raise ValueError(f"half_life_s is {half_life_s}, but must be more than 0.")
        self.hits = self.misses = self.evictions = 0
        self._capacity, self._half_life_s = capacity, half_life_s
        self._used = self._idle_used = self._count = 0
        self._places: dict[int, _Place] = {}
        self._leases: dict[int, int] = {}
        #: Eviction heap of (value, number, version id). An entry is outdated if its number differs from its place's.
        self._idle: list[tuple[float, int, int]] = []

    def __contains__(self, version_id: int) -> bool:
        """Return whether the version has a place, even if it is still loading."""
        return version_id in self._places

    def __len__(self) -> int:
        """Number of versions that have a place."""
        return len(self._places)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def used(self) -> int:
        """Total size of all residents; loading ones count with their planned size."""
        return self._used

    @property
    def residents(self) -> frozenset[int]:
        """Version ids that have a place, including loading ones."""
        return frozenset(self._places)

    @property
    def loaded_ids(self) -> frozenset[int]:
        """Version ids that have a place and are loaded."""
        return frozenset(version_id for version_id, place in self._places.items() if not place.loading)

    def leases(self, version_id: int) -> int:
        """Return the number of leases. Leases of a failed load count until they are released."""
        return self._leases.get(version_id, 0)

    def size(self, version_id: int) -> int:
        """Return the version's share of the capacity; 0 if it has no place."""
        place = self._places.get(version_id)
        return place.size if place else 0

    def would_fit(self, size: int) -> bool:
        """Return whether there is room for this size without an eviction."""
        return self._used + size <= self._capacity

    def admit(self, version_id: int, size: int = 1, *, now: float, cost_s: float = 0.0) -> Decision:
        """Lease a version for one request, and decide what must happen before it can run.

        Args:
            size: planned size; ignored if the version has a place.
            now: current time, in seconds.
            cost_s: seconds that a reload would take; 0 keeps the known value, or means almost nothing.

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
        """Record that a load is complete.

        Args:
            size: actual size; None if it is as planned.

        Returns:
            True if the version was removed during the load and has no lease: take it out of the tier.

        Raises:
            ValueError: no load of the version is under way, or a size below 1.
        """
        place = self._loading(version_id)
        size = place.size if size is None else _checked(size)
        self._used += size - place.size
        place.loading, place.size = False, size
        self._rest(version_id, place)
        return self._take_out(version_id)

    def failed(self, version_id: int) -> None:
        """Record that a load failed and left nothing in the tier. Its room is free again.

        Raises:
            ValueError: no load of the version is under way.
        """
        self._used -= self._loading(version_id).size
        del self._places[version_id]

    def release(self, version_id: int, *, now: float) -> bool:
        """Return one lease.

        Returns:
            True if it was the last lease of a removed version: take the version out of the tier.

        Raises:
            ValueError: the version has no lease.
        """
        leases = self._leases.get(version_id, 0)
        if not leases:
            raise ValueError(f"Version {version_id} has no lease to release.")
        if leases > 1:
            self._leases[version_id] = leases - 1
        else:
            del self._leases[version_id]
        if place := self._places.get(version_id):
            # A long request counts as a use until its end.
            place.uses = max(place.uses, now / self._half_life_s)
            self._rest(version_id, place)
        return self._take_out(version_id)

    def remove(self, version_id: int) -> bool:
        """Mark a version as deleted.

        Returns:
            True if it must be taken out of the tier now. If False and it is resident, a later call returns True.
        """
        if place := self._places.get(version_id):
            place.doomed = True
        return self._take_out(version_id)

    def evict(self, version_id: int) -> bool:
        """Evict one version at the caller's request.

        Returns:
            True if it was idle and its room is free; False if nothing changed.
        """
        place = self._places.get(version_id)
        if place is None or place.idle is None:
            return False
        self._drop(version_id)
        self.evictions += 1
        return True

    def _loading(self, version_id: int) -> _Place:
        place = self._places.get(version_id)
        if place is None or not place.loading:
            raise ValueError(f"Version {version_id} is not being loaded.")
        return place

    def _use(self, place: _Place, now: float, cost_s: float) -> None:
        place.cost_s = cost_s or place.cost_s
        if place.idle is not None:
            place.idle = None
            self._idle_used -= place.size
        # log2(2**uses + 2**this). The powers themselves would overflow after days.
        this = now / self._half_life_s
        more, less = max(place.uses, this), min(place.uses, this)
        place.uses = more + math.log2(1 + 2 ** (less - more))

    def _rest(self, version_id: int, place: _Place) -> None:
        """Make a version evictable if it is loaded and has no lease."""
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
        raise ValueError(f"size is {size}, but must be 1 or more.")
    return size
