"""Places in the engine's batch, with preemption by start tag.

A sequence is a first if its tenant had none in flight when it was admitted. Firsts rank before all other sequences, and
half of the places are reserved for them. While the reserve lasts, a tenant with nothing in flight goes next, regardless
of its counter. It never waits for sequences of other tenants to end, however many these have in flight. A tenant with a
constant backlog is first only once. After that its counter decides.

All other sequences are ordered by start tag: their tenant's counter at admission (Goyal et al., "Start-time Fair
Queueing", SIGCOMM 1996). A queue that admits in this order never ranks an earlier sequence behind a later one. A
request with a smaller counter than the tags of some running sequences may still enter. It is then ordered as if it had
come before them.

Its counter must be below each tag by the charge for that sequence's output. Otherwise, tenants that all have a backlog
would preempt each other in turn.
"""

from math import inf

from sortedcontainers import SortedList

from app.scheduling.queues import Request


class RunningSequences:
    """Sequences in flight.

    Args:
        places: number of sequences that run at once.
        aside: maximum number of preempted sequences, not counting those preempted by firsts. With 0 there is no
            preemption and there are no firsts.

    Attributes:
        free: number of free places; negative while sequences are preempted.
        firsts: number of further firsts that may be admitted.
    """

    def __init__(self, places: int, aside: int) -> None:
        self.places = self.free = places
        self.firsts = places // 2 if aside else 0
        self._aside = aside
        #: Preemption thresholds of the sequences in flight.
        self._thresholds: SortedList[float] = SortedList()

    def resize(self, places: int) -> None:
        """Change the number of places. Firsts keep their part of the first size."""
        self.free += places - self.places
        self.places = places

    def room(self, counter: float) -> int:
        """Return the number of places that a request with this counter may take.

        These places are free, or held by sequences with a preemption threshold above the counter. The limit on
        preempted sequences caps the result.
        """
        return min(self.places - int(self._thresholds.bisect_right(counter)), self._aside + self.free)

    def take(self, request: Request) -> None:
        """Give a place to a sequence; ``request.first`` marks a first."""
        self.free -= 1
        if request.first:
            self.firsts -= 1
            request.start_tag = request.threshold = -inf
        self._thresholds.add(request.threshold)

    def give(self, request: Request) -> None:
        """Return the place of a sequence."""
        self.free += 1
        self.firsts += request.first
        self._thresholds.remove(request.threshold)
