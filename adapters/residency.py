"""Who may have a place in the engine: planning only, no I/O, no clock, no asyncio.

vLLM keeps adapters in a CPU cache of ``max_cpu_loras`` places and copies those that run into ``max_loras``
slots. Left alone it evicts adapters that are in use, reads their files again in the middle of a step, and
lets a busy adapter starve a cold one. So it is never left a choice: :class:`SlotGate` lets no more distinct
adapters run than there are slots, and :class:`Residency` plans no more residents than there are places.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum


class Admission(Enum):
    """What :meth:`Residency.admit` decided."""

    RESIDENT = "resident"  # loaded: run
    LOADING = "loading"  # somebody else's load is under way: wait for it
    LOAD = "load"  # evict what the decision names, then load; end with `loaded` or `failed`
    WAIT = "wait"  # every place is leased or loading: ask again after a `release` or `failed`


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request.

    Attributes:
        admission: what to do.
        evict: version id to take out of the engine before the load; its place is given away already.
    """

    admission: Admission
    evict: int | None = None


class Residency:
    """The plan of the engine's CPU cache. Residents, those being loaded included, never exceed the capacity.

    Each admission that is not WAIT takes a lease, given back by one ``release``, also when the load fails.
    A version that is leased or being loaded is never evicted; a pin is a lease that its holder keeps.

    Args:
        capacity: ``max_cpu_loras``.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity}, allowed 1 or more")
        self._capacity = capacity
        self._loading: set[int] = set()
        #: Loaded version ids, the least recently used first.
        self._loaded: OrderedDict[int, None] = OrderedDict()
        self._leases: Counter[int] = Counter()
        self._doomed: set[int] = set()

    @property
    def residents(self) -> frozenset[int]:
        """Version ids that have a place, those being loaded included."""
        return frozenset(self._loaded) | self._loading

    def admit(self, version_id: int) -> Decision:
        """Lease a version for one request, and say what must happen before it can run."""
        decision = self._decide(version_id)
        if decision.admission is Admission.WAIT:
            return decision
        self._leases[version_id] += 1
        if decision.admission is Admission.RESIDENT:
            self._loaded.move_to_end(version_id)
        elif decision.admission is Admission.LOAD:
            if decision.evict is not None:
                del self._loaded[decision.evict]
            self._loading.add(version_id)
        return decision

    def loaded(self, version_id: int) -> bool:
        """The load is done. True: it was removed meanwhile and nobody waits, so take it out of the engine."""
        self._loading.remove(version_id)
        self._loaded[version_id] = None
        return self._take_out(version_id)

    def failed(self, version_id: int) -> None:
        """The load failed, and the engine has been made to forget the version: its place is free again."""
        self._loading.remove(version_id)
        self._doomed.discard(version_id)

    def release(self, version_id: int) -> bool:
        """Give one lease back. True: it was the last of a removed version, so take it out of the engine.

        Raises:
            ValueError: there is no lease.
        """
        if not self._leases[version_id]:
            raise ValueError(f"version {version_id} has no lease to release")
        self._leases[version_id] -= 1
        if not self._leases[version_id]:
            del self._leases[version_id]
        if version_id in self._loaded:
            self._loaded.move_to_end(version_id)
        return self._take_out(version_id)

    def remove(self, version_id: int) -> bool:
        """A version was deleted. True: take it out of the engine now; else a later call says so, if it is resident."""
        if version_id in self._loaded or version_id in self._loading:
            self._doomed.add(version_id)
        return self._take_out(version_id)

    def _decide(self, version_id: int) -> Decision:
        if version_id in self._loaded:
            return Decision(Admission.RESIDENT)
        if version_id in self._loading:
            return Decision(Admission.LOADING)
        if len(self._loaded) + len(self._loading) < self._capacity:
            return Decision(Admission.LOAD)
        for candidate in self._loaded:
            if not self._leases[candidate]:
                return Decision(Admission.LOAD, evict=candidate)
        return Decision(Admission.WAIT)

    def _take_out(self, version_id: int) -> bool:
        if version_id not in self._doomed or version_id not in self._loaded or self._leases[version_id]:
            return False
        del self._loaded[version_id]
        self._doomed.remove(version_id)
        return True


@dataclass(slots=True)
class _Queue:
    """Requests that wait for one adapter.

    Attributes:
        since: when the first of them came, in the caller's seconds.
        requests: their ids, in order.
    """

    since: float
    requests: dict[str, None] = field(default_factory=dict)


class SlotGate:
    """Fair admission to the slots: distinct adapters with requests in flight never exceed them.

    Adapters wait first in, first out. A request whose adapter is active joins it, except when the oldest waiting
    adapter has waited longer than ``max_age_s``: then nobody joins any more until that one has its slot. An
    adapter that gets a slot brings in all who wait for it. Every request is entered once and left once, whether
    it ran, failed or gave up waiting. Requests for the base model need no slot and never come here.

    A pinned adapter keeps its slot by a request that does not leave; since it takes the slot from nobody, all
    who want it run at once, however long others wait.

    Times are seconds of any one clock that does not go backwards, such as ``time.monotonic``.

    Args:
        slots: distinct adapters that may run at once.
        max_age_s: how long joining may delay the oldest waiting adapter.

    Raises:
        ValueError: fewer than 1 slot.
    """

    def __init__(self, slots: int, *, max_age_s: float = 2.0) -> None:
        if slots < 1:
            raise ValueError(f"slots: found {slots}, allowed 1 or more")
        self._slots, self._max_age_s = slots, max_age_s
        #: Request ids to their versions: those in flight, then those waiting.
        self._running: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._active: Counter[int] = Counter()
        self._pinned: set[int] = set()
        #: By version, in the order of arrival.
        self._queues: dict[int, _Queue] = {}

    def enter(self, request_id: str, version_id: int, now: float) -> bool:
        """Ask for a slot. True: run now; False: wait until ``leave`` of another request returns this id.

        Raises:
            ValueError: the request has entered already.
        """
        if request_id in self._running or request_id in self._waiting:
            raise ValueError(f"request {request_id!r} has entered already")
        self._queues.setdefault(version_id, _Queue(now)).requests[request_id] = None
        self._waiting[request_id] = version_id
        return request_id in self._advance(now)

    def leave(self, request_id: str, now: float) -> tuple[str, ...]:
        """End a request, running or waiting, and return those that may run now; unknown ids change nothing."""
        if request_id in self._waiting:
            version_id = self._waiting.pop(request_id)
            del self._queues[version_id].requests[request_id]
            if not self._queues[version_id].requests:
                del self._queues[version_id]
        elif request_id in self._running:
            version_id = self._running.pop(request_id)
            self._active[version_id] -= 1
            if not self._active[version_id]:
                del self._active[version_id]
        return self._advance(now)

    def pin(self, version_id: int, now: float) -> tuple[str, ...]:
        """Let everybody join the adapter from now on; returns those that may run now.

        Raises:
            ValueError: no request of it runs, so it has no slot to keep.
        """
        if version_id not in self._active:
            raise ValueError(f"version {version_id} has no slot to keep")
        self._pinned.add(version_id)
        return self._advance(now)

    def unpin(self, version_id: int) -> None:
        """Make the adapter one like all others; the request that kept its slot still has to leave."""
        self._pinned.discard(version_id)

    def _advance(self, now: float) -> tuple[str, ...]:
        admitted: list[str] = []
        joinable = True
        for version_id, queue in list(self._queues.items()):
            has_slot = version_id in self._active
            may_join = has_slot and (joinable or version_id in self._pinned)
            if may_join or (not has_slot and len(self._active) < self._slots):
                admitted += self._admit(version_id)
            elif now - queue.since > self._max_age_s:
                # The first queue left waiting is the oldest: those behind it may not join in front of it.
                joinable = False
        return tuple(admitted)

    def _admit(self, version_id: int) -> list[str]:
        requests = list(self._queues.pop(version_id).requests)
        for request_id in requests:
            self._running[request_id] = self._waiting.pop(request_id)
        self._active[version_id] += len(requests)
        return requests
