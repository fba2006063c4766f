"""Fair order over tenants: one queue per tenant and version, and the choice of the next queue."""

from collections.abc import Iterator
from math import inf

from app.scheduling.queues import COLD, RESIDENT, STAGED, Request, SlotState, Tenant, TenantQueue, Version
from app.scheduling.token_counters import TokenCounters


class FairOrder:
    """Next request of each tenant, by counter.

    A tenant's oldest request goes first. If that one needs a slot, its longest STAGED queue goes first instead. A
    version that gets a slot admits all its waiting requests, so the longest queue makes the most of a slot. With more
    versions than slots, this serves more of the tenant's requests than arrival order does. Most of them wait less.
    Lengths are compared by power of two, then by arrival, so that most arrivals leave the rank unchanged.

    A version may have a queue for every tenant, and versions lose and regain their slots often. Queues of a version
    that is no longer RESIDENT therefore stay filed as RESIDENT until a look-up finds them.
    """

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters

    def add(self, request: Request) -> None:
        """Append a request to its tenant queue."""
        version, tenant = request.version, request.tenant
        queue = version.queues.get(tenant.name)
        if queue is None:
            queue = version.queues[tenant.name] = TenantQueue(tenant, version)
        queue.requests[request.name] = request
        self._file(queue)

    def remove(self, request: Request) -> None:
        """Remove a request from its tenant queue."""
        queues, name = request.version.queues, request.tenant.name
        queue = queues[name]
        del queue.requests[request.name]
        if not queue.requests:
            del queues[name]
        self._file(queue)

    def move(self, version: Version, slot_state: SlotState) -> None:
        """Change the slot state of a version."""
        before, version.slot_state = version.slot_state, slot_state
        if before is RESIDENT and slot_state is not COLD:
            return
        outdated = [queue for queue in version.queues.values() if queue.slot_state is not slot_state]
        # Sorted by tenant, because lifts depend on their order and must not depend on arrival.
        for queue in sorted(outdated, key=lambda queue: queue.tenant.name):
            self._file(queue)

    def least(self, states: tuple[SlotState, ...]) -> float:
        """Return a lower bound on the counters of the tenants that :meth:`first` considers; infinite without any."""
        tenant = self._counters.first(states)
        return inf if tenant is None else tenant.counter

    def first(self, states: tuple[SlotState, ...], *, new: bool = False) -> Request | None:
        """Return the next request of the tenant with the smallest counter.

        Args:
            states: slot states whose requests to consider.
            new: True to consider only new tenants with nothing in flight.
        """
        while (tenant := self._counters.first(states, new=new)) is not None:
            if (request := self._first_of(tenant, states)) is not None:
                return request
        return None

    def in_order(self, states: tuple[SlotState, ...]) -> Iterator[Request]:
        """Yield the next request of each tenant, by counter. A tenant may occur twice."""
        for tenant in self._counters.in_order(states):
            if (request := self._first_of(tenant, states)) is not None:
                yield request

    def _first_of(self, tenant: Tenant, states: tuple[SlotState, ...]) -> Request | None:
        queue: TenantQueue
        while oldest := [tenant.queues[slot_state][0] for slot_state in states if slot_state in tenant.queues]:
            _, queue = min(oldest)
            if queue.version.slot_state not in states:
                self._file(queue)
                continue
            if queue.version.slot_state is STAGED:
                queue = next(queue for *_, queue in tenant.longest if queue.version.slot_state is STAGED)
            return queue.requests.oldest
        return None

    def _file(self, queue: TenantQueue) -> None:
        """File a queue under the slot state of its version, by its oldest request and its length."""
        tenant, before, number, rank = queue.tenant, queue.slot_state, queue.number, queue.rank
        slot_state = queue.version.slot_state if queue.requests else COLD
        queue.slot_state, queue.number, queue.rank = slot_state, -1, 0
        if slot_state is not COLD:
            queue.number, queue.rank = queue.requests.oldest.number, -len(queue.requests).bit_length()
        if (queue.rank, queue.number) != (rank, number):
            if before is not COLD:
                tenant.longest.remove((rank, number, queue))
            if slot_state is not COLD:
                tenant.longest.add((queue.rank, queue.number, queue))
        if (slot_state, queue.number) != (before, number):
            if before is not COLD:
                tenant.queues[before].remove((number, queue))
                if not tenant.queues[before]:
                    del tenant.queues[before]
            if slot_state is not COLD:
                tenant.queues[slot_state].add((queue.number, queue))
            self._counters.reorder(tenant)
