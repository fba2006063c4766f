"""Fair order over tenants: one queue per tenant and version, and the choice of the next queue."""

from collections.abc import Iterator
from math import inf

from app.scheduling import longest_queue
from app.scheduling.queues import COLD, DRAINING, RESIDENT, STAGED, Request, SlotState, Tenant, TenantQueue, Version
from app.scheduling.token_counters import TokenCounters


class FairOrder:
    """Tenant queues by slot state of their version, with lazy updates.

    A version may have a queue for every tenant, and its slot state changes often. A change therefore moves no queues.
    A queue with an outdated state is moved when a look-up finds it. All queues of a version are moved only if a look-up
    would miss them otherwise.
    """

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        #: Versions with queues that :meth:`first` would miss, and versions with queues that it finds only with a free
        #: slot.
        self._hidden: dict[int, Version] = {}
        self._late: dict[int, Version] = {}

    def add(self, request: Request) -> None:
        """Append a request to its tenant queue."""
        version, name = request.version, request.tenant.name
        queue = version.queues.get(name)
        if queue is not None:
            request.queue = queue
            queue.add(request)
            longest_queue.note(queue)
            return
        request.queue = queue = version.queues[name] = TenantQueue(request.tenant, version)
        queue.add(request)
        self._counters.show(queue, version.shown)

    def remove(self, request: Request) -> None:
        """Remove a request from its tenant queue."""
        queue = request.queue
        oldest = queue.remove(request)
        if queue.rank:
            longest_queue.note(queue)
        if not queue.count:
            del queue.version.queues[queue.tenant.name]
            self._counters.show(queue, COLD)
        elif oldest:
            self._counters.show(queue, queue.shown)

    def move(self, version: Version, slot_state: SlotState) -> None:
        """Change the slot state of a version."""
        version.slot_state = slot_state
        if version.parked and slot_state is STAGED:
            longest_queue.unpark(version)
        version_id = version.version_id
        self._late.pop(version_id, None)
        if slot_state is COLD or version.shown is COLD:
            self._show(version)
        elif version.scattered:
            self._hidden[version_id] = version
        elif slot_state is RESIDENT and version.shown is STAGED:
            self._late[version_id] = version

    def forget(self, version_id: int) -> None:
        """Drop a version without waiting requests."""
        self._late.pop(version_id, None)
        self._hidden.pop(version_id, None)

    def least(self, *, slot_free: bool) -> float:
        """Return the smallest counter that :meth:`first` considers; infinite if there is none."""
        self._show_all(slot_free=slot_free)
        least = self._counters.least(slot_free=slot_free)
        return inf if least is None else least[0]

    def first(self, *, slot_free: bool, new: bool = False) -> Request | None:
        """Return the next request of the tenant with the smallest counter.

        It considers RESIDENT queues and, with a free slot, STAGED ones. It returns the tenant's oldest request. If that
        one needs the slot, it returns the oldest request of the tenant's longest STAGED queue.

        Args:
            slot_free: True if a slot is free.
            new: True to consider only new tenants with nothing in flight.
        """
        self._show_all(slot_free=slot_free)
        while (least := self._counters.least(slot_free=slot_free, new=new)) is not None:
            if (request := self._first_of(self._counters[least[1]], slot_free=slot_free)) is not None:
                return request
        return None

    def in_order(self, *, slot_free: bool) -> Iterator[Request]:
        """Yield the next request of each tenant, by counter."""
        self._show_all(slot_free=slot_free)
        for tenant in self._counters.in_order(slot_free=slot_free):
            while tenant.resident or (slot_free and tenant.staged):
                if (request := self._first_of(tenant, slot_free=slot_free)) is not None:
                    yield request
                    break

    def _first_of(self, tenant: Tenant, *, slot_free: bool) -> Request | None:
        """Return a tenant's next request in RESIDENT or STAGED; None if there is none or a queue was moved."""
        number, queues = tenant.resident.first(), tenant.resident
        if slot_free and (other := tenant.staged.first()) is not None and (number is None or other < number):
            number, queues = other, tenant.staged
        if number is None:
            return None
        queue = queues[number]
        slot_state = queue.version.slot_state
        if slot_state is RESIDENT:
            return queue.first
        if slot_state is STAGED and slot_free:
            return longest_queue.fullest(tenant, queue).first if tenant.crowded else queue.first
        queue.version.scattered = True
        self._counters.show(queue, slot_state)
        return None

    def _show_all(self, *, slot_free: bool) -> None:
        if self._hidden:
            for version in self._hidden.values():
                if version.slot_state is not DRAINING:
                    self._show(version)
            self._hidden.clear()
        if self._late and not slot_free:
            for version in self._late.values():
                self._show(version)
            self._late.clear()

    def _show(self, version: Version) -> None:
        version.shown, version.scattered = version.slot_state, False
        # Sorted by tenant, because lifts depend on their order and must not depend on arrival.
        for _, queue in sorted(version.queues.items()) if len(version.queues) > 1 else version.queues.items():
            if queue.shown is not version.slot_state:
                self._counters.show(queue, version.slot_state)
