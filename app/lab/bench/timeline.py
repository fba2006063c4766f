"""Closed loops made of an open loop's requests, and what its samples say about moments of the run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from app.lab.bench.open_loop import NOT_SENT, Request, Sample
from app.lab.bench.wire import LoadError


class NotMeasured(LoadError):
    """The run did not show what it was made to show; its numbers would mean something else."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request and what became of it.

    Attributes:
        group: whose it is: a tenant, or a part that it plays in the workload.
    """

    group: str
    prompt_tokens: int
    output_tokens: int
    sample: Sample


class Script:
    """The requests of a plan as they are written down, each with its group.

    Attributes:
        requests: in the plan's order.
        groups: one for each request.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.groups: list[str] = []
        self._ends: list[int] = []

    def add(self, group: str, request: Request) -> int:
        """Write a request down; returns its position in the plan."""
        self.requests.append(request)
        self.groups.append(group)
        return len(self.requests) - 1

    def chain(self, group: str, requests: Iterable[Request]) -> None:
        """Write down requests of which each is sent when the one before it has ended."""
        before: int | None = None
        for request in requests:
            before = self.add(group, replace(request, after=before))
        if before is not None:
            self._ends.append(before)

    def require_unfinished(self, samples: Sequence[Sample]) -> None:
        """See that no chain ran out of requests before the plan's ``stop_s``.

        Raises:
            NotMeasured
        """
        for end in self._ends:
            if samples[end].why != NOT_SENT:
                raise NotMeasured(f"a client of {self.groups[end]} had sent all its requests before the end")

    def served(self, samples: Sequence[Sample]) -> list[Served]:
        """The plan's samples together with their requests."""
        return [
            Served(group, len(request.prompt), request.output_tokens, sample)
            for group, request, sample in zip(self.groups, self.requests, samples, strict=True)
        ]


def of(group: str, served: Iterable[Served]) -> list[Served]:
    """A group's requests that were sent."""
    return [one for one in served if one.group == group and one.sample.why != NOT_SENT]


def require_answered(served: Iterable[Served]) -> None:
    """See that every request was answered as asked.

    Raises:
        NotMeasured: one was not; names its group and the reason.
    """
    for one in served:
        if not one.sample.ok:
            raise NotMeasured(f"a request of {one.group} failed: {one.sample.why}")


def arrivals(sample: Sample) -> list[float]:
    """When the events that carry tokens came, in seconds since the run's start."""
    if sample.first is None:
        return []
    return list(accumulate((gap / 1000 for gap in sample.gaps_ms), initial=sample.first))


def gaps_between(streams: Iterable[Sample], begin: float, end: float) -> list[float]:
    """Inter-token gaps of streams, in seconds, that overlap an interval. Between two streams there is none."""
    return [
        after - before
        for stream in streams
        for before, after in pairwise(arrivals(stream))
        if after > begin and before < end
    ]


def gaps_before(streams: Iterable[Sample], end: float) -> list[float]:
    """Inter-token gaps of streams, in seconds, that ended before a moment."""
    return [after - before for stream in streams for before, after in pairwise(arrivals(stream)) if after <= end]


def require_running(streams: Sequence[Sample], begin: float, end: float) -> None:
    """See that a chain of streams went on for all of an interval, but for the change from one stream to the next.

    Raises:
        NotMeasured: a stream failed early, or tokens came for too small a part of the interval.
    """
    for stream in streams:
        if stream.why is not None and (stream.end or 0.0) < end:
            raise NotMeasured(f"the stream ended at {stream.end} s of {end:.2f} s: {stream.why}")
    spans = [(times[0], times[-1]) for times in map(arrivals, streams) if times]
    covered = sum(max(0.0, min(last, end) - max(first, begin)) for first, last in spans)
    if not spans or spans[0][0] > begin or spans[-1][1] < end or covered < 0.9 * (end - begin):
        raise NotMeasured(f"the stream ran for {covered:.2f} of the {end - begin:.2f} s that were to be watched")


def tokens_between(served: Iterable[Served], begin: float, end: float) -> tuple[int, int]:
    """Prompt and output tokens served in an interval; a prompt counts when its first token comes."""
    prompts = outputs = 0
    for one in served:
        times = arrivals(one.sample)
        if times and begin <= times[0] < end:
            prompts += one.prompt_tokens
        outputs += sum(begin <= time < end for time in times)
    return prompts, outputs
