"""The budget of the disk copy: who has room in it, and who makes room."""

from collections.abc import Callable

from adapters.cache.files import Found
from adapters.errors import DiskFull
from adapters.residency import Admission, Residency

#: A disk holds many times what host memory does, so it remembers uses for longer.
_HALF_LIFE_S = 3600.0


class Room:
    """A :class:`adapters.residency.Residency` of bytes, which knows versions by their digests.

    Args:
        budget: most bytes.
        now: a clock that does not go backwards, in seconds.
    """

    def __init__(self, budget: int, now: Callable[[], float]) -> None:
        self._now = now
        self._plan = Residency(budget, half_life_s=_HALF_LIFE_S)

    @property
    def budget(self) -> int:
        return self._plan.capacity

    @property
    def used(self) -> int:
        return self._plan.used

    @property
    def evictions(self) -> int:
        return self._plan.evictions

    def adopt(self, found: Found) -> list[str]:
        """Give room to what is on the disk already; returns the digests that make room. The oldest comes first."""
        place, at = _place(found.digest), self._now() - max(found.age_s, 0.0)
        decision = self._plan.admit(place, found.size, now=at, cost_s=_cost_s(found.size))
        self._plan.loaded(place)
        self._plan.release(place, now=at)
        return [_digest(evicted) for evicted in decision.evict]

    def check(self, size: int, *, spare: bool) -> None:
        """Refuse what can have no room however long it waits, or if it is ``spare`` what has none free now.

        Raises:
            DiskFull
        """
        if size > self.budget or (spare and not self._plan.would_fit(size)):
            raise self._full(size)

    def reserve(self, digest: str, size: int, leases: int) -> list[str]:
        """Give room to a version that is on its way, with so many leases; returns the digests that make room.

        Raises:
            DiskFull: what is leased or on its way leaves none.
        """
        place, now = _place(digest), self._now()
        decision = self._plan.admit(place, size, now=now, cost_s=_cost_s(size))
        if decision.admission is Admission.WAIT:
            raise self._full(size)
        for _ in range(leases - 1):
            self._plan.admit(place, size, now=now)
        return [_digest(evicted) for evicted in decision.evict]

    def filled(self, digest: str) -> None:
        """A version with a reservation has come."""
        self._plan.loaded(_place(digest))

    def lease(self, digest: str) -> None:
        """One lease more of a version that has room."""
        self._plan.admit(_place(digest), now=self._now())

    def release(self, digest: str) -> None:
        self._plan.release(_place(digest), now=self._now())

    def free(self, digest: str, leases: int) -> None:
        """A version is not here, or goes: take back its room and all its leases."""
        place = _place(digest)
        self._plan.remove(place)
        for _ in range(leases):
            self._plan.release(place, now=self._now())
        if place in self._plan:
            self._plan.failed(place)

    def _full(self, size: int) -> DiskFull:
        return DiskFull(f"the cache has no room for {size} bytes: its budget is {self.budget}, the rest is in use")


def _place(digest: str) -> int:
    """The plan knows versions by numbers, and a digest is one."""
    return int(digest, 16)


def _digest(place: int) -> str:
    return f"{place:064x}"


def _cost_s(size: int) -> float:
    """What a version costs to fetch again, in seconds: two calls and 100 MB/s, as of a store over a network.

    All versions come from the same store, so that measured times would add its noise and no knowledge.
    """
    return 0.05 + size / 100e6
