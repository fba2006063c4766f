"""Byte budget of the disk cache: admission and eviction by digest."""

from collections.abc import Callable

from adapters.cache.files import CachedDirectory
from adapters.errors import DiskFull
from adapters.residency import Admission, Residency

#: A disk holds far more versions than host memory, so uses decay more slowly, over this many seconds.
_HALF_LIFE_S = 3600.0


class Room:
    """:class:`adapters.residency.Residency` in bytes, keyed by digest.

    Args:
        budget: limit of bytes.
        now: monotonic clock, in seconds.
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

    def adopt(self, directory: CachedDirectory) -> list[str]:
        """Admit a directory that is already on the disk. Call it in order of age, the oldest first.

        Returns:
            The digests to evict.
        """
        place, at = _place(directory.digest), self._now() - max(directory.age_s, 0.0)
        decision = self._plan.admit(place, directory.size, now=at, cost_s=_cost_s(directory.size))
        self._plan.loaded(place)
        self._plan.release(place, now=at)
        return [_digest(evicted) for evicted in decision.evict]

    def check(self, size: int, *, spare: bool) -> None:
        """Refuse a size that can never fit, or, if ``spare``, one that does not fit without an eviction.

        Raises:
            DiskFull: there is no such room.
        """
        if size > self.budget or (spare and not self._plan.would_fit(size)):
            raise self._full(size)

    def reserve(self, digest: str, size: int, leases: int) -> list[str]:
        """Admit a version that is about to be fetched, with its number of leases.

        Returns:
            The digests to evict.

        Raises:
            DiskFull: leased versions and fetches under way leave no room.
        """
        place, now = _place(digest), self._now()
        decision = self._plan.admit(place, size, now=now, cost_s=_cost_s(size))
        if decision.admission is Admission.WAIT:
            raise self._full(size)
        for _ in range(leases - 1):
            self._plan.admit(place, size, now=now)
        return [_digest(evicted) for evicted in decision.evict]

    def filled(self, digest: str) -> None:
        """Record that the fetch of an admitted version is complete."""
        self._plan.loaded(_place(digest))

    def lease(self, digest: str) -> None:
        """Add a lease to an admitted version."""
        self._plan.admit(_place(digest), now=self._now())

    def release(self, digest: str) -> None:
        self._plan.release(_place(digest), now=self._now())

    def free(self, digest: str, leases: int) -> None:
        """Take back a version's room and all its leases, because it is absent or being removed."""
        place = _place(digest)
        self._plan.remove(place)
        for _ in range(leases):
            self._plan.release(place, now=self._now())
        if place in self._plan:
            self._plan.failed(place)

    def _full(self, size: int) -> DiskFull:
        return DiskFull(
            f"The disk cache has no room for {size} bytes. Its budget is {self.budget} bytes, and the rest is in use."
        )


def _place(digest: str) -> int:
    """Convert a digest to the integer id that the plan needs."""
    return int(digest, 16)


def _digest(place: int) -> str:
    return f"{place:064x}"


def _cost_s(size: int) -> float:
    """Estimate the seconds to fetch a version again: two calls and 100 MB/s, as of a store over a network.

    All versions come from one store, so measured times would add noise but no information.
    """
    return 0.05 + size / 100e6
