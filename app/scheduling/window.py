"""The places of the engine's steps, and who has them while more sequences are in flight than that.

Requests that run are in the order of the counters that their tenants had when they were admitted, their tags: where a
queue has admitted by that order, an earlier one is never behind. Who comes with a smaller counter than some of them
had is in time if it goes in now, as if it had come before them. (Start tags: Goyal et al., "Start-time Fair Queueing",
SIGCOMM 1996.)
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
        self._tags: list[float] = []

    @property
    def in_flight(self) -> int:
        """Sequences that run or are set aside."""
        return len(self._tags)

    def room(self, counter: float) -> int:
        """Places that are free, or had with larger tags than this counter."""
        return min(self.places - bisect_right(self._tags, counter), self._aside + self.free)

    def take(self, tag: float, sequences: int) -> None:
        self.free -= sequences
        for _ in range(sequences):
            insort(self._tags, tag)

    def give(self, tag: float, sequences: int) -> None:
        self.free += sequences
        at = bisect_left(self._tags, tag)
        del self._tags[at : at + sequences]
