"""Pins of a fleet: which replica pins which version.

Every replica computes the same assignment from the same rows, so they need no agreement with each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.scheduling.rendezvous import Fleet, ranking

#: Seconds without a heartbeat after which a replica's pins move. A replica that Ray replaces is back earlier.
ABSENT_S = 120.0
#: Most seconds that two observations can add to an absence. The registry may have been away meanwhile.
_STEP_S = 5.0


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """A replica as its row shows it.

    Attributes:
        absent_s: seconds since its last heartbeat, by two clocks that may differ.
    """

    node_id: str
    slots: int
    seen_at: datetime
    absent_s: float


class Members:
    """Replicas that hold pins: a new one at once, an absent one for :data:`ABSENT_S`.

    Absence is counted while the registry answers, by the clock of this process. So neither an outage of the registry
    nor a wrong clock moves pins.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._observed_at: float | None = None

    def observe(self, replicas: Iterable[SeenReplica], now: float) -> Fleet:
        """Return the members after a read of all rows. ``now`` is a monotonic time in seconds."""
        step_s = 0.0 if self._observed_at is None else min(max(0.0, now - self._observed_at), _STEP_S)
        self._observed_at = now
        before, self._seen = self._seen, {}
        members = []
        for replica in replicas:
            seen_at, absent_s = before.get(replica.node_id, (replica.seen_at, replica.absent_s - step_s))
            absent_s = absent_s + step_s if seen_at == replica.seen_at else 0.0
            self._seen[replica.node_id] = replica.seen_at, absent_s
            if absent_s < ABSENT_S:
                members.append((replica.node_id, replica.slots))
        return tuple(sorted(members))


def assigned(node_id: str, pins: Sequence[tuple[int, str]], fleet: Fleet, *, copies: int) -> frozenset[int]:
    """Return the versions that a replica pins: those of which it is among the first ``copies`` of the ranking.

    A replica keeps one slot unpinned. Pins beyond that go to the next replica of their ranking, newest pins first.

    Args:
        pins: id and content digest of each pinned version, oldest first.
        fleet: members of the fleet, sorted.
    """
    free = {member: slots - 1 for member, slots in fleet}
    held: dict[int, set[str]] = {version_id: set() for version_id, _ in pins}
    # The first copy of every version comes before second copies.
    for _ in range(min(copies, len(fleet))):
        for version_id, digest in pins:
            order = ranking(digest, fleet)
            member = next((member for member in order if free[member] > 0 and member not in held[version_id]), None)
            if member is not None:
                free[member] -= 1
                held[version_id].add(member)
    return frozenset(version_id for version_id, members in held.items() if node_id in members)


def pin_capacity(slots: Mapping[str, int] | Fleet, *, copies: int) -> int:
    """Return the number of versions that can be pinned in a fleet, each on ``copies`` replicas."""
    fleet = dict(slots)
    places = sorted((max(0, number - 1) for number in fleet.values()), reverse=True)
    copies = min(copies, sum(place > 0 for place in places)) or 1
    # A version has at most one copy on each replica.
    return max((n for n in range(sum(places) // copies + 1) if sum(min(p, n) for p in places) >= n * copies), default=0)
