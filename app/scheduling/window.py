"""The places of the engine's steps, and who has them while more sequences are in flight than that.

Requests that run are in the order of the counters that their tenants had when they were admitted, their tags: where a
queue has admitted by that order, an earlier one is never behind. Who comes with a smaller counter than some of them
had is in time if it goes in now, as if it had come before them. (Start tags: Goyal et al., "Start-time Fair Queueing",
SIGCOMM 1996.) It has to be smaller by what each of them was charged for its output: else tenants that all
wait would set each other's aside by turns.
"""

from bisect import bisect_left, bisect_right, insort


class Window:
    """Sequences in flight.

    Args:
        places: sequences that run at once.
        aside: most sequences that are set aside.

    Attributes:
        free: places that nobody has; below 0 where a request has more sequences than there are.
    """

    def __init__(self, places: int, aside: int) -> None:
        self.places = self.free = places
        self._aside = aside
        #: Of each sequence, in order.
        self._bars: list[float] = []

    @property
    def in_flight(self) -> int:
        """Sequences that run or are set aside."""
        return len(self._bars)

    def room(self, counter: float) -> int:
        """Places that are free, or had by those whose bar is above this counter."""
        return min(self.places - bisect_right(self._bars, counter), self._aside + self.free)

    def take(self, bar: float, sequences: int) -> None:
        self.free -= sequences
        for _ in range(sequences):
            insort(self._bars, bar)

    def give(self, bar: float, sequences: int) -> None:
        self.free += sequences
        at = bisect_left(self._bars, bar)
        del self._bars[at : at + sequences]
