"""How long adapters waited, by what clients saw, and how long the scheduler may let them wait."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from app.lab.bench.open_loop import Sample

#: A request and the adapter that it was for.
Sent = tuple[Sample, object]


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which an adapter had a request waiting and none of its requests was begun; seconds."""

    adapter: object
    since: float
    begun: float

    @property
    def seconds(self) -> float:
        return self.begun - self.since


def waits(sent: Iterable[Sent]) -> Iterator[Wait]:
    """Every adapter's waits.

    A request is begun with its first token, or waits until it fails. That a request waits behind others of its own
    adapter does not count: it is how long an adapter was passed over.
    """
    events: dict[object, list[tuple[float, int]]] = defaultdict(list)
    for sample, adapter in sent:
        if sample.sent is not None:
            # Of events at one time the arrival comes first.
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
    """Seconds of the longest of them; 0 without any."""
    return max((wait.seconds for wait in waits(sent)), default=0.0)


def of_bound(sent: Sequence[Sent], slots: int, max_age_s: float) -> float:
    """The wait that used most of its bound, as a part of it; above 1 the promise was broken.

    The bound is ceil(adapters that wait, its own included / slots) x (age + the longest drain), with the longest time
    from an answer's first token to its end for a drain. It is about slots: where sequences are short of room, too, a
    wait may be longer.
    """
    drain_s = max(
        (one.end - one.first for one, _ in sent if one.first is not None and one.end is not None), default=0.0
    )
    round_s, worst = max_age_s + drain_s, 0.0
    if not round_s:
        return worst
    waiting = [(one.sent, _begun(one), adapter) for one, adapter in sent if one.sent is not None]
    for wait in waits(sent):
        # A shorter wait is within its bound whoever waits, and cannot be the worst.
        if wait.seconds > worst * round_s:
            others = {adapter for since, begun, adapter in waiting if since <= wait.since < begun} | {wait.adapter}
            worst = max(worst, wait.seconds / (ceil(len(others) / slots) * round_s))
    return worst


def _begun(sample: Sample) -> float:
    if sample.first is not None:
        return sample.first
    return sample.end if sample.end is not None else sample.sent or 0.0
