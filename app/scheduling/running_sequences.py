"""The places of the engine's steps, and who has them while more sequences are in flight than that.

A sequence is a first if its tenant had none in flight when it was admitted. Firsts go before all others, and half of
the places are kept for them. A tenant that comes with nothing in flight is next whatever its counter is, while there
may be more firsts: it never waits for sequences of others to end, however many they have in flight. One that always has
requests waiting comes once only, and from then on its counter has the say.

All others are in the order of the counters that their tenants had when they were admitted, their tags: where a queue
has admitted by that order, an earlier one is never behind. Who comes with a smaller counter than some of them had is in
time if it goes in now, as if it had come before them. (Start tags: Goyal et al., "Start-time Fair Queueing", SIGCOMM
1996.) It has to be smaller by what each of them was charged for its output: else tenants that all wait would set each
other's aside by turns.
"""

from bisect import bisect_left, bisect_right, insort
from math import inf

from app.scheduling.queues import Request


class RunningSequences:
    """Sequences in flight.

    Args:
        places: sequences that run at once.
        aside: most sequences that are set aside; firsts come on top. With 0 none is, and there are no firsts.

    Attributes:
        free: places that nobody has; below 0 where some are set aside.
        firsts: how many more firsts there may be.
    """

    def __init__(self, places: int, aside: int) -> None:
        self.places = self.free = places
        self.firsts = places // 2 if aside else 0
        self._aside = aside
        #: Of each sequence, in order.
        self._bars: list[float] = []

    def room(self, counter: float) -> int:
        """Places that are free, or had by those whose bar is above this counter."""
        return min(self.places - bisect_right(self._bars, counter), self._aside + self.free)

    def take(self, request: Request) -> None:
        """A sequence has a place from now on; ``request.first`` says whether it is a first."""
        self.free -= 1
        if request.first:
            self.firsts -= 1
            request.tag = request.bar = -inf
        insort(self._bars, request.bar)

    def give(self, request: Request) -> None:
        """It has none any more."""
        self.free += 1
        self.firsts += request.first
        del self._bars[bisect_left(self._bars, request.bar)]
