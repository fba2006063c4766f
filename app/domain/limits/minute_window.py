"""Sliding sum over the last 60 seconds, an upper bound."""

from collections.abc import Iterable
from math import floor, inf

SPAN_S = 60.0
#: Buckets per second. An amount expires with its bucket: up to 0.2 s late, 1/300 of the span.
_STEPS_PER_S = 5


class MinuteWindow:
    """Sliding window counter with buckets of 0.2 s. Times must not decrease."""

    __slots__ = ("_next", "_steps", "total")

    def __init__(self) -> None:
        #: A list, because an empty deque is larger and most windows are empty. See
        #: docs/decisions/0037-lists-in-rate-limit-windows.md.
        self._steps: list[list[int]] = []
        self.total = 0
        #: Time at which the oldest bucket expires.
        self._next = inf

    @classmethod
    def of(cls, steps: Iterable[tuple[int, int]]) -> "MinuteWindow":
        """Parse the output of :attr:`steps`."""
        window = cls()
        window._steps.extend([step, amount] for step, amount in steps)
        window.total = sum(amount for _, amount in window._steps)
        window._next = window._oldest_leaves()
        return window

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Buckets as (step, amount), oldest first."""
        return [(step, amount) for step, amount in self._steps]

    def add(self, now: float, amount: int) -> int:
        """Add an amount; return its step, for :meth:`correct`."""
        self.advance(now)
        step = floor(now * _STEPS_PER_S)
        if self._steps and self._steps[-1][0] >= step:
            self._steps[-1][1] += amount
        else:
            self._steps.append([step, amount])
            self._next = min(self._next, _leaves(step))
        self.total += amount
        return self._steps[-1][0]

    def correct(self, step: int, difference: int) -> None:
        """Adjust the amount of a bucket; no effect if the bucket has expired."""
        for bucket in reversed(self._steps):
            if bucket[0] == step:
                bucket[1] += difference
                self.total += difference
                return
            if bucket[0] < step:
                return

    def advance(self, now: float) -> None:
        """Expire buckets older than the span."""
        if now < self._next:
            return
        old = 0
        for step, amount in self._steps:
            if now < _leaves(step):
                break
            self.total -= amount
            old += 1
        del self._steps[:old]
        self._next = self._oldest_leaves()

    def room_in(self, now: float, amount: int, limit: int) -> float:
        """Return the seconds until an amount fits if nothing else arrives.

        The caller ensures that the amount does not exceed the limit.
        """
        self.advance(now)
        over, wait = self.total + amount - limit, 0.0
        for step, counted in self._steps:
            if over <= 0:
                break
            over -= counted
            wait = _leaves(step) - now
        return wait

    def empty_in(self, now: float) -> float:
        """Return the seconds until the window is empty."""
        return max(0.0, _leaves(self._steps[-1][0]) - now) if self._steps else 0.0

    def _oldest_leaves(self) -> float:
        return _leaves(self._steps[0][0]) if self._steps else inf


def _leaves(step: int) -> float:
    return (step + 1) / _STEPS_PER_S + SPAN_S
