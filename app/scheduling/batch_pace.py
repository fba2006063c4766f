"""Pace of batches on one server: how many lines may be in flight. State in, decision out: no clock, no I/O.

A line that cannot run now (a full queue, a spent budget, a store that does not answer) lowers the number of lines to
those in flight, and the next one waits. Each line that ends raises it by one. While none is in flight, one line at a
time is tried, with exponential backoff.
"""

from math import inf

#: Backoff in seconds.
LEAST_S, MOST_S = 0.2, 5.0


#: Seconds for which a server counts as one that other requests share.
SHARED_S = 10.0


def most_lines(window: int, *, share: float, idle_s: float) -> int:
    """Return how many lines may be in flight on one server, of all batches together.

    Each line lengthens the engine's steps, and so the first token of every other request.

    Args:
        window: maximum number of sequences in the engine.
        share: part of the window for lines while other requests come.
        idle_s: seconds since the last other request.
    """
    return window if idle_s >= SHARED_S else min(window, max(1, int(window * share)))


class BatchPace:
    """Number of lines that may be in flight.

    Args:
        width: maximum number; None: no maximum.
    """

    def __init__(self, width: int | None) -> None:
        self._width: float = inf if width is None else width
        self._places = self._width
        self._delay_s, self._not_before = 0.0, 0.0

    def room(self, in_flight: int, now: float) -> int:
        """Return how many more lines may start now; a large number without a limit."""
        if now < self._not_before:
            return 0
        return int(max(0, min(self._places - in_flight, 10**6)))

    def ended(self) -> None:
        """Record a line that ended with a result."""
        self._places = min(self._width, self._places + 1)
        self._delay_s = self._not_before = 0.0

    def refused(self, in_flight: int, now: float) -> None:
        """Record a line that cannot run now.

        Args:
            in_flight: lines of the batch that are still in flight.
        """
        self._places = max(1, min(self._places, in_flight))
        if now >= self._not_before:
            self._delay_s = min(MOST_S, max(LEAST_S, 2 * self._delay_s))
            self._not_before = now + self._delay_s
