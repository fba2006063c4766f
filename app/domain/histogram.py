"""Times counted in fixed buckets, so that counts of several nodes add up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_FIRST_S = 0.001
_PER_OCTAVE = 4
_BUCKETS = 69

#: Upper edges in seconds, each 19% above the one before, from 1 ms to 131 s; a last bucket holds what is later.
EDGES_S: tuple[float, ...] = tuple(_FIRST_S * 2 ** (index / _PER_OCTAVE) for index in range(_BUCKETS))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """How many times fell into each bucket.

    Attributes:
        counts: one per edge, and one for what is later than the last; in all ``len(EDGES_S) + 1``.
    """

    counts: tuple[int, ...] = (0,) * (_BUCKETS + 1)

    def __post_init__(self) -> None:
        if len(self.counts) != _BUCKETS + 1:
            raise ValueError(f"counts: found {len(self.counts)} buckets, allowed {_BUCKETS + 1}")

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "LatencyHistogram":
        counts = [0] * (_BUCKETS + 1)
        for time_s in times_s:
            counts[bucket_of(time_s)] += 1
        return cls(tuple(counts))

    def __add__(self, other: "LatencyHistogram") -> "LatencyHistogram":
        return LatencyHistogram(tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)))

    def __sub__(self, earlier: "LatencyHistogram") -> "LatencyHistogram":
        return LatencyHistogram(tuple(mine - theirs for mine, theirs in zip(self.counts, earlier.counts, strict=True)))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """The upper edge in seconds of the bucket that holds the ``share``-quantile; None if nothing was counted.

        What is later than the last edge counts as the last edge.
        """
        needed = math.ceil(share * self.total)
        if needed == 0:
            return None
        seen = 0
        for edge, count in zip(EDGES_S, self.counts, strict=False):
            seen += count
            if seen >= needed:
                return edge
        return EDGES_S[-1]

    def later_than(self, limit_s: float) -> int:
        """How many are later for sure: those in buckets that begin at or above the limit."""
        lower_edges = (0.0, *EDGES_S)
        return sum(count for edge, count in zip(lower_edges, self.counts, strict=True) if edge >= limit_s)


def bucket_of(time_s: float) -> int:
    """Index of the bucket of a time; bounds belong to the bucket below."""
    if time_s <= _FIRST_S:
        return 0
    if time_s > EDGES_S[-1]:
        return _BUCKETS
    # The logarithm may be a hair off at an edge.
    index = min(math.ceil(math.log2(time_s / _FIRST_S) * _PER_OCTAVE), _BUCKETS - 1)
    if time_s > EDGES_S[index]:
        return index + 1
    return index - 1 if time_s <= EDGES_S[index - 1] else index
