"""A sum over the last sixty seconds that is never too small."""

from collections.abc import Iterable
from math import floor, inf

SPAN_S = 60.0
#: An amount leaves when its whole step has: up to a fifth of a second late, a 300th of the span.
_STEPS_PER_S = 5


class MinuteWindow:
    """Amounts by the time that they came, in steps of a fifth of a second. Times only ever grow."""

    __slots__ = ("_next", "_steps", "total")

    def __init__(self) -> None:
        #: No deque: an empty one takes half a KiB, and most windows are empty, each of a key that was used this month.
        self._steps: list[list[int]] = []
        self.total = 0
        #: When the oldest step leaves.
        self._next = inf

    @classmethod
    def of(cls, steps: Iterable[tuple[int, int]]) -> "MinuteWindow":
        """What :attr:`steps` gave."""
        window = cls()
        window._steps.extend([step, amount] for step, amount in steps)
        window.total = sum(amount for _, amount in window._steps)
        window._next = window._oldest_leaves()
        return window

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Each step with what came in it, the oldest first."""
        return [(step, amount) for step, amount in self._steps]

    def add(self, now: float, amount: int) -> int:
        """Count an amount; returns the step to correct it by."""
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
        """Change what was counted in a step; one that has left the window counts no more."""
        for found in reversed(self._steps):
            if found[0] == step:
                found[1] += difference
                self.total += difference
                return
            if found[0] < step:
                return

    def advance(self, now: float) -> None:
        """Forget what is older than the span."""
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
        """Seconds until an amount fits, if nothing else comes; that it ever does is the caller's to know."""
        self.advance(now)
        over, wait = self.total + amount - limit, 0.0
        for step, counted in self._steps:
            if over <= 0:
                break
            over -= counted
            wait = _leaves(step) - now
        return wait

    def empty_in(self, now: float) -> float:
        """Seconds until nothing is left of what is counted."""
        return max(0.0, _leaves(self._steps[-1][0]) - now) if self._steps else 0.0

    def _oldest_leaves(self) -> float:
        return _leaves(self._steps[0][0]) if self._steps else inf


def _leaves(step: int) -> float:
    return (step + 1) / _STEPS_PER_S + SPAN_S
