"""Simulated adapter loader: blob store, disk, host memory, slot, in the order of the engine's loader."""

from collections.abc import Callable, Iterable
from functools import partial

from adapters.residency import Admission, Residency
from app.lab.simulator.costs import Costs


class BrokenPromise(Exception):
    """The scheduler admitted a request without a slot, or whose adapter cannot be copied into one."""


class Loader:
    """Two tiers, host memory and slots, planned by :class:`adapters.residency.Residency` as in the server.

    A version can get a slot while it is in either tier. Host memory keeps versions that wait for a slot or are being
    copied. All fetches run in parallel from the first request of their version, and the disk has room for all.

    Args:
        host: plan of host memory, in bytes.
        slots: plan of the slots, one unit per version.
        parallel: maximum number of versions staged at the same time.
        size: bytes of a version.
        to_stage: waiting versions that cannot get a slot yet, the longest waiting first.
        unstaged: callback for each version that can no longer get a slot.
        later: schedules a callback for a time.
        staged: callback for each version that can now be copied into a slot.
    """

    def __init__(
        self,
        host: Residency,
        slots: Residency,
        costs: Costs,
        *,
        parallel: int,
        size: Callable[[int], int],
        to_stage: Callable[[], Iterable[int]],
        unstaged: Callable[[int], None],
        later: Callable[[float, Callable[[float], None]], None],
        staged: Callable[[int, float], None],
    ) -> None:
        self._host, self._slots, self._costs, self._parallel, self._size = host, slots, costs, parallel, size
        self._to_stage, self._unstaged, self._later, self._staged = to_stage, unstaged, later, staged
        #: Versions on the disk, True once their fetch is complete.
        self._disk: dict[int, bool] = {}
        #: Versions that wait for a slot, True while they have a lease on host memory.
        self._kept: dict[int, bool] = {}
        #: Waiting versions that are on the disk only.
        self._missing: set[int] = set()
        self._loading: set[int] = set()
        #: Version that did not fit into host memory. It is loaded next.
        self._blocked: int | None = None

    @property
    def on_disk(self) -> Iterable[int]:
        """Versions whose fetch from the blob store is complete."""
        return (version_id for version_id, fetched in self._disk.items() if fetched)

    def available(self, version_id: int) -> bool:
        """Return whether the version can get a slot."""
        return version_id in self._slots or (version_id in self._host and version_id not in self._loading)

    def keep(self, version_id: int, now: float) -> None:
        """Keep or load the version, for which a first request waits."""
        self._kept[version_id] = version_id in self._loading
        if version_id in self._loading:
            return
        if version_id in self._host:
            self._host.admit(version_id, now=now)
            self._kept[version_id] = True
        elif version_id not in self._slots:
            self._miss(version_id, now)

    def let_go(self, version_id: int, now: float) -> None:
        """Release the version, for which no request waits. Host memory keeps it until it needs the room."""
        self._missing.discard(version_id)
        if self._kept.pop(version_id) and version_id not in self._loading:
            self._host.release(version_id, now=now)
            self.load(now)

    def load(self, now: float) -> None:
        """Start as many loads as allowed, the longest waiting version first."""
        while self._missing and len(self._loading) < self._parallel:
            version_id = self._blocked if self._blocked in self._missing else self._next()
            size = self._size(version_id)
            seconds = self._costs.stage_s_per_byte * size
            decision = self._host.admit(version_id, size, now=now, cost_s=seconds)
            if decision.admission is Admission.WAIT:
                self._blocked = version_id
                return
            self._missing.remove(version_id)
            self._loading.add(version_id)
            self._kept[version_id] = True
            self._later(now + seconds, partial(self._loaded, version_id))
            for evicted in decision.evict:
                if evicted not in self._slots:
                    self._unstaged(evicted)

    def enter_slot(self, version_id: int, now: float) -> float | None:
        """Lease a slot for an admitted request of the version.

        Returns:
            Seconds of the copy to start, or None if it was started before.

        Raises:
            BrokenPromise: all slots are in use by other versions, or this one is not staged.
        """
        if not self.available(version_id):
            raise BrokenPromise(f"Version {version_id} was admitted before it was staged.")
        seconds = self._costs.copy_s + self._costs.copy_s_per_byte * self._size(version_id)
        decision = self._slots.admit(version_id, now=now, cost_s=seconds)
        if decision.admission is Admission.WAIT:
            raise BrokenPromise(f"Version {version_id} was admitted while every slot was in use.")
        if decision.admission is not Admission.LOAD:
            return None
        # Hold a lease on host memory until the copy out of it has ended.
        self._host.admit(version_id, now=now)
        for evicted in decision.evict:
            self._lost_slot(evicted, now)
        return seconds

    def copied(self, version_id: int, now: float) -> None:
        """Handle the end of a copy."""
        self._slots.loaded(version_id)
        self._host.release(version_id, now=now)
        self.load(now)

    def abandon(self, version_id: int, now: float) -> None:
        """Abandon a copy without waiting requests. Its slot is free at once, as in the scheduler."""
        self._slots.failed(version_id)
        self._host.release(version_id, now=now)
        self.load(now)

    def leave_slot(self, version_id: int, now: float) -> None:
        """Release the slot of an ended request. The slot keeps the version until another one needs it."""
        self._slots.release(version_id, now=now)

    def _next(self) -> int:
        for version_id in self._to_stage():
            if version_id in self._missing:
                return version_id
        raise BrokenPromise(f"{len(self._missing)} versions wait unstaged, and the scheduler wants none of them.")

    def _lost_slot(self, version_id: int, now: float) -> None:
        if version_id in self._host:
            return
        self._unstaged(version_id)
        if version_id in self._kept:
            self._miss(version_id, now)

    def _miss(self, version_id: int, now: float) -> None:
        if self._disk.get(version_id):
            self._missing.add(version_id)
            self.load(now)
        elif version_id not in self._disk:
            self._disk[version_id] = False
            self._later(now + self._costs.fetch_s, partial(self._fetched, version_id))

    def _fetched(self, version_id: int, now: float) -> None:
        self._disk[version_id] = True
        if version_id in self._kept:
            self._missing.add(version_id)
            self.load(now)

    def _loaded(self, version_id: int, now: float) -> None:
        self._loading.remove(version_id)
        self._host.loaded(version_id)
        if version_id not in self._kept:
            self._host.release(version_id, now=now)
        self._staged(version_id, now)
        self.load(now)
