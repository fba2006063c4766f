"""Closed loops built from an open loop's requests, and metrics of its samples over intervals of the run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from app.lab.bench.open_loop import NOT_SENT, Request, Sample
from app.lab.bench.wire import LoadError


class NotMeasured(LoadError):
    """The run did not meet the conditions of its measurement, so its numbers are invalid."""


@dataclass(frozen=True, slots=True)
class Served:
    """Request with its outcome.

    Attributes:
        group: tenant, or role in the workload.
    """

    group: str
    prompt_tokens: int
    output_tokens: int
    sample: Sample


class Script:
    """Builder of a plan's requests, each with its group.

    Attributes:
        requests: requests in the plan's order.
        groups: group of each request.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.groups: list[str] = []
        self._ends: list[int] = []

    def add(self, group: str, request: Request) -> int:
        """Add a request and return its position in the plan."""
        self.requests.append(request)
        self.groups.append(group)
        return len(self.requests) - 1

    def chain(self, group: str, requests: Iterable[Request]) -> None:
        """Add a chain of requests. Each is sent when the one before it has ended."""
        before: int | None = None
        for request in requests:
            before = self.add(group, replace(request, after=before))
        if before is not None:
            self._ends.append(before)

    def require_unfinished(self, samples: Sequence[Sample]) -> None:
        """Check that no chain ran out of requests before the plan's ``stop_s``.

        Raises:
            NotMeasured: a chain ran out.
        """
        for end in self._ends:
            if samples[end].why != NOT_SENT:
                raise NotMeasured(f"A client of {self.groups[end]} had sent all its requests before the end.")

    def served(self, samples: Sequence[Sample]) -> list[Served]:
        """Combine the plan's requests with their samples."""
        return [
            Served(group, len(request.prompt), request.output_tokens, sample)
            for group, request, sample in zip(self.groups, self.requests, samples, strict=True)
        ]


def of(group: str, served: Iterable[Served]) -> list[Served]:
    """Sent requests of a group."""
    return [one for one in served if one.group == group and one.sample.why != NOT_SENT]


def require_answered(served: Iterable[Served]) -> None:
    """Check that every request was answered correctly.

    Raises:
        NotMeasured: a request failed. The message names its group and the reason.
    """
    for request in served:
        if not request.sample.ok:
            raise NotMeasured(f"A request of {request.group} failed: {request.sample.why}")


def arrivals(sample: Sample) -> list[float]:
    """Arrival times of events with tokens, in seconds since the run's start."""
    if sample.first is None:
        return []
    return list(accumulate((gap / 1000 for gap in sample.gaps_ms), initial=sample.first))


def gaps_between(streams: Iterable[Sample], begin: float, end: float) -> list[float]:
    """Inter-token gaps of streams that overlap an interval, in seconds. Breaks between streams do not count."""
    return [
        after - before
        for stream in streams
        for before, after in pairwise(arrivals(stream))
        if after > begin and before < end
    ]


def gaps_before(streams: Iterable[Sample], end: float) -> list[float]:
    """Inter-token gaps of streams that ended before a time, in seconds."""
    return [after - before for stream in streams for before, after in pairwise(arrivals(stream)) if after <= end]


def require_running(streams: Sequence[Sample], begin: float, end: float) -> None:
    """Check that a chain of streams covered an interval, except for the breaks between streams.

    Raises:
        NotMeasured: a stream failed early, or the streams covered too little of the interval.
    """
    for stream in streams:
        if stream.why is not None and (stream.end or 0.0) < end:
            raise NotMeasured(f"The stream ended at {stream.end} s of {end:.2f} s: {stream.why}")
    spans = [(times[0], times[-1]) for times in map(arrivals, streams) if times]
    covered = sum(max(0.0, min(last, end) - max(first, begin)) for first, last in spans)
    if not spans or spans[0][0] > begin or spans[-1][1] < end or covered < 0.9 * (end - begin):
        raise NotMeasured(f"The stream ran for {covered:.2f} s of the {end - begin:.2f} s to be measured.")


def tokens_between(served: Iterable[Served], begin: float, end: float) -> tuple[int, int]:
    """Count the prompt and output tokens served in an interval. A prompt counts at its first output token."""
    prompts = outputs = 0
    for request in served:
        times = arrivals(request.sample)
        if times and begin <= times[0] < end:
            prompts += request.prompt_tokens
        outputs += sum(begin <= time < end for time in times)
    return prompts, outputs
