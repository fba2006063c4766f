"""Longest queue first among a tenant's queues that need a slot.

A version that gets a slot admits all its waiting requests, so the longest queue makes the most of a slot. With more
versions than slots, this serves more of the tenant's requests than arrival order does. Most of them wait less. Lengths
are compared by power of two, then by arrival, so that most arrivals leave the rank unchanged.

Queues of length 1 have no rank, because the order by age covers them. Longer queues are ranked while their version is
READY. Otherwise, a queue that changes or would be found first is parked with its version. Slots change hands often, and
ranking all queues of a version each time would take time linear in their number.
"""

from app.scheduling.queues import READY, Tenant, TenantQueue, Version

#: ``TenantQueue.rank`` of a parked queue; real ranks are below 0.
_PARKED = 1

#: Maximum number of bits of a request's number.
_NUMBER_BITS = 48


def note(line: TenantQueue) -> None:
    """Update the rank of a queue after an arrival or a departure."""
    if line.count < 2:
        _forget(line)
    elif line.version.place is not READY:
        _park(line)
    else:
        rank = line.first.number - (line.count.bit_length() << _NUMBER_BITS)
        if rank != line.rank:
            _forget(line)
            line.rank = rank
            line.tenant.crowded.add(rank, line)


def unpark(version: Version) -> None:
    """Rank the parked queues of a version that became READY."""
    parked, version.parked = version.parked, None
    for line in parked or ():
        line.rank = 0
        note(line)


def fullest(tenant: Tenant, oldest: TenantQueue) -> TenantQueue:
    """Return the tenant's longest READY queue; the oldest queue if all have length 1."""
    crowded = tenant.crowded
    while (rank := crowded.first()) is not None:
        line = crowded[rank]
        if line.version.place is READY:
            return line
        _park(line)
    return oldest


def _park(line: TenantQueue) -> None:
    if line.rank == _PARKED:
        return
    _forget(line)
    line.rank, version = _PARKED, line.version
    if version.parked is None:
        version.parked = set()
    version.parked.add(line)


def _forget(line: TenantQueue) -> None:
    parked = line.version.parked
    if parked and line.rank == _PARKED:
        parked.discard(line)
    elif line.rank:
        line.tenant.crowded.discard(line.rank)
    line.rank = 0
