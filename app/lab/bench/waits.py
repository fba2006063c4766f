"""Waits of adapters as seen by clients, and the scheduler's bound on them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from app.lab.bench.open_loop import Sample

#: Sample of a request, and its adapter.
Sent = tuple[Sample, object]


@dataclass(frozen=True, slots=True)
class Wait:
    """Interval in which an adapter had a waiting request and none of its requests began. Times are in seconds."""

    adapter: object
    since: float
    begun: float

    @property
    def seconds(self) -> float:
        return self.begun - self.since


def waits(sent: Iterable[Sent]) -> Iterator[Wait]:
    """Yield the waits of every adapter.

    A request begins with its first token, or waits until it fails. Waiting behind requests of the same adapter does not
    count: a wait measures how long the adapter was passed over.
    """
    events: dict[object, list[tuple[float, int]]] = defaultdict(list)
    for sample, adapter in sent:
        if sample.sent is not None:
            # At equal times the arrival sorts first.
            events[adapter] += [(sample.sent, 0), (_begun(sample), 1)]
    for adapter, moments in events.items():
        waiting, since = 0, 0.0
        for moment, begins in sorted(moments):
            if begins:
                yield Wait(adapter, since, moment)
                waiting, since = waiting - 1, moment
            else:
                since = moment if waiting == 0 else since
                waiting += 1


def longest(sent: Iterable[Sent]) -> float:
    """Longest wait in seconds, 0 without any."""
    return max((wait.seconds for wait in waits(sent)), default=0.0)


def of_bound(sent: Sequence[Sent], slots: int, max_age_s: float) -> float:
    """Largest ratio of a wait to its bound. A value above 1 violates the bound.

    The bound is ceil(waiting adapters, this one included / slots) x (age + longest drain). The longest time from an
    answer's first token to its end stands for the drain. The bound is about slots: a shortage of sequences can make a
    wait longer.
    """
    drain_s = max(
        (one.end - one.first for one, _ in sent if one.first is not None and one.end is not None), default=0.0
    )
    round_s, worst = max_age_s + drain_s, 0.0
    if not round_s:
        return worst
    waiting = [(one.sent, _begun(one), adapter) for one, adapter in sent if one.sent is not None]
    for wait in waits(sent):
        # Skip shorter waits: each bound is at least one round, so they cannot be the worst.
        if wait.seconds > worst * round_s:
            others = {adapter for since, begun, adapter in waiting if since <= wait.since < begun} | {wait.adapter}
            worst = max(worst, wait.seconds / (ceil(len(others) / slots) * round_s))
    return worst


def _begun(sample: Sample) -> float:
    if sample.first is not None:
        return sample.first
    return sample.end if sample.end is not None else sample.sent or 0.0
