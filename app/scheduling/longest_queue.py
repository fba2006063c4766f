"""Of a tenant's lines that need a slot, the one in which most wait.

A version that gets a slot brings in all that wait for it, so that a slot does most where most wait: with more versions
than slots their tenant has more requests served than in the order in which they came, and waits less for most of them.
Only the power of two of how many wait counts, and then who came first; most of those that join a line change nothing.

Lines in which one waits are no crowds, and the order by age is enough for them. The others are ranked while their
version is READY. While it is not, a line that changes, or would be found first, is parked with its version: slots come
and go often, and to rank a version's lines anew each time would cost as much as it has lines.
"""

from app.scheduling.queues import READY, Tenant, TenantQueue, Version

#: ``TenantQueue.rank`` of a parked one; ranks are below 0.
_PARKED = 1

#: Requests have numbers of no more bits.
_NUMBER_BITS = 48


def note(line: TenantQueue) -> None:
    """A request has joined a line, or has left it."""
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
    """The version has come to be READY."""
    parked, version.parked = version.parked, None
    for line in parked or ():
        line.rank = 0
        note(line)


def fullest(tenant: Tenant, oldest: TenantQueue) -> TenantQueue:
    """Of the tenant's lines in READY the one in which most wait; the oldest if no more than one does in each."""
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
