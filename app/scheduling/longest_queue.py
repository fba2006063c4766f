"""Longest queue first among a tenant's queues that need a slot.

A version that gets a slot admits all its waiting requests, so the longest queue makes the most of a slot. With more
versions than slots, this serves more of the tenant's requests than arrival order does. Most of them wait less. Lengths
are compared by power of two, then by arrival, so that most arrivals leave the rank unchanged.

Queues of length 1 have no rank, because the order by age covers them. Longer queues are ranked while their version is
STAGED. Otherwise, a queue that changes or would be found first is parked with its version. Slots change hands often,
and ranking all queues of a version each time would take time linear in their number.
"""

from app.scheduling.queues import STAGED, Tenant, TenantQueue, Version

#: ``TenantQueue.rank`` of a parked queue; real ranks are below 0.
_PARKED = 1

#: Maximum number of bits of a request's number.
_NUMBER_BITS = 48


def note(queue: TenantQueue) -> None:
    """Update the rank of a queue after an arrival or a departure."""
    if queue.count < 2:
        _forget(queue)
    elif queue.version.slot_state is not STAGED:
        _park(queue)
    else:
        rank = queue.first.number - (queue.count.bit_length() << _NUMBER_BITS)
        if rank != queue.rank:
            _forget(queue)
            queue.rank = rank
            queue.tenant.crowded.add(rank, queue)


def unpark(version: Version) -> None:
    """Rank the parked queues of a version that became STAGED."""
    parked, version.parked = version.parked, None
    for queue in parked or ():
        queue.rank = 0
        note(queue)


def fullest(tenant: Tenant, oldest: TenantQueue) -> TenantQueue:
    """Return the tenant's longest STAGED queue; the oldest queue if all have length 1."""
    crowded = tenant.crowded
    while (rank := crowded.first()) is not None:
        queue = crowded[rank]
        if queue.version.slot_state is STAGED:
            return queue
        _park(queue)
    return oldest


def _park(queue: TenantQueue) -> None:
    if queue.rank == _PARKED:
        return
    _forget(queue)
    queue.rank, version = _PARKED, queue.version
    if version.parked is None:
        version.parked = set()
    version.parked.add(queue)


def _forget(queue: TenantQueue) -> None:
    parked = queue.version.parked
    if parked and queue.rank == _PARKED:
        parked.discard(queue)
    elif queue.rank:
        queue.tenant.crowded.discard(queue.rank)
    queue.rank = 0
