"""Latency histogram with fixed buckets, so that counts of several nodes add up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_FIRST_S = 0.001
_PER_OCTAVE = 4
_BUCKETS = 69

#: Upper bucket edges in seconds, from 1 ms to 131 s, 19% apart. An overflow bucket follows the last edge.
EDGES_S: tuple[float, ...] = tuple(_FIRST_S * 2 ** (index / _PER_OCTAVE) for index in range(_BUCKETS))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Counts per bucket.

    Attributes:
        counts: one count per edge and one for the overflow bucket, ``len(EDGES_S) + 1`` in all.
    """

    counts: tuple[int, ...] = (0,) * (_BUCKETS + 1)

    def __post_init__(self) -> None:
        if len(self.counts) != _BUCKETS + 1:
            raise ValueError(f"A histogram has {_BUCKETS + 1} counts; {len(self.counts)} were passed.")

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
        """Return the upper edge in seconds of the bucket with the ``share``-quantile; None if the histogram is empty.

        Times in the overflow bucket count as the last edge.
        """
        needed = math.ceil(share * self.total)
        if needed == 0:
            return None
        cumulative = 0
        for edge, count in zip(EDGES_S, self.counts, strict=False):
            cumulative += count
            if cumulative >= needed:
                return edge
        return EDGES_S[-1]

    def later_than(self, limit_s: float) -> int:
        """Return a lower bound on the number of times above the limit.

        Counts the buckets whose lower edge is at or above the limit.
        """
        lower_edges = (0.0, *EDGES_S)
        return sum(count for edge, count in zip(lower_edges, self.counts, strict=True) if edge >= limit_s)


def bucket_of(time_s: float) -> int:
    """Return the index of the bucket of a time; an edge belongs to the bucket below it."""
    if time_s <= _FIRST_S:
        return 0
    if time_s > EDGES_S[-1]:
        return _BUCKETS
    # Correct the rounding error of the logarithm at an edge.
    index = min(math.ceil(math.log2(time_s / _FIRST_S) * _PER_OCTAVE), _BUCKETS - 1)
    if time_s > EDGES_S[index]:
        return index + 1
    return index - 1 if time_s <= EDGES_S[index - 1] else index
