"""Places of the window that stay free for tenants that do not queue.

In a window that is always full, whoever comes waits until something ends, however small its share. So a tenant that
queues, has no credit and runs more than its share leaves some places free: as many as those with credit lately took
beyond what they take now, as far as that is chance. Where one is alone that is none. Where all queue, tenants are
served by tokens, not by places, so that a little more than its share of these is not more than its due.
"""

from math import sqrt

#: No more than one place in so many is kept free.
PART = 4

#: A tenant may run so many times its share of the window before it leaves places free.
TIMES = 1.25

#: Seconds after which a request that waits shows that its tenant queues: a burst is over sooner.
LATE_S = 0.25

#: Seconds for which it is remembered, once to twice, how many places were taken.
MEMORY_S = 5.0


class Reserve:
    """Counts the places of requests whose tenants had credit when they were admitted.

    Args:
        window: sequences that may run at once.

    Attributes:
        most: places that are kept free at most.
        due: when :meth:`forget` is to be called.
    """

    def __init__(self, window: int) -> None:
        self.most = most_kept(window)
        self._taken = 0
        #: The most that were taken since ``_since``, and in the ``MEMORY_S`` before it.
        self._peak = self._earlier = 0
        self._since, self.due = 0.0, MEMORY_S

    @property
    def places(self) -> int:
        """How many are kept free."""
        return min(self.most, max(self._peak, self._earlier) - self._taken)

    def take(self, places: int) -> None:
        """A request is admitted whose tenant has credit."""
        self._taken += places
        self._peak = max(self._peak, self._taken)

    def give(self, places: int) -> None:
        """It has ended."""
        self._taken -= places

    def forget(self, now: float) -> None:
        """Forget what was long ago."""
        self._earlier = self._peak if now - self._since < 2 * MEMORY_S else self._taken
        self._peak, self._since, self.due = self._taken, now, now + MEMORY_S


def most_kept(window: int) -> int:
    """Places that are kept free at most, 6 of 32 and 11 of 128.

    What runs of those who come at random swings by the square root of its number, here as if all of it were theirs.
    """
    return min(window // PART, round(sqrt(window)))
