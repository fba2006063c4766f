"""Discrete-event simulation of an engine: admitted sequences run for a while and leave."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest


@dataclass
class Engine:
    """Simulated engine for requests with one prompt each.

    Attributes:
        seconds: duration of each sequence of a request.
        output_tokens: true number of output tokens of each sequence of a request.
        ended: callback for each sequence that ended, called after it left.
        order: request of each started sequence, in order.
    """

    admission: Admission
    seconds: Callable[[AdmissionRequest], float] = lambda request: 1.0
    output_tokens: Callable[[AdmissionRequest], int] = lambda request: request.output_tokens
    ended: Callable[[AdmissionRequest], object] = lambda request: None
    now: float = 0.0
    entered: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    order: list[AdmissionRequest] = field(default_factory=list)
    requests: dict[str, AdmissionRequest] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _events: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)

    def at(self, time: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def enter(
        self,
        tenant: str,
        version_id: int | None = None,
        *,
        weight: float = 1.0,
        prompt: int = 10,
        output: int = 10,
        sequences: int = 1,
    ) -> AdmissionRequest:
        name = f"request {next(self._numbers)}"
        request = AdmissionRequest(name, tenant, weight, version_id, (prompt,), output, sequences)
        self.requests |= {request.name(sequence): request for sequence in range(sequences)}
        self.entered[name] = self.now
        self.start(self.admission.enter(request, self.now))
        return request

    def start(self, names: tuple[str, ...]) -> None:
        for name in names:
            request = self.requests[name]
            self.started[name] = self.now
            self.order.append(request)
            self.at(self.now + self.seconds(request), partial(self.end, request, name))

    def end(self, request: AdmissionRequest, name: str) -> None:
        prompt, output = 0 if name != request.request_id else request.prompts[0], self.output_tokens(request)
        self.served[request.tenant] += prompt + 2 * output
        self.start(self.admission.leave(name, self.now, prompt_tokens=prompt, output_tokens=output))
        self.ended(request)

    def run(self, until: float = float("inf")) -> None:
        """Advance the clock to ``until``, or until no event is left."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        if until != float("inf"):
            self.now = until

    def waits(self, tenant: str) -> list[float]:
        """Return the seconds from entry to start of the tenant's started requests."""
        return [self.started[t.request_id] - self.entered[t.request_id] for t in self.order if t.tenant == tenant]


def staged(admission: Admission, versions: range) -> Admission:
    """Stage versions before any request waits for them."""
    for version_id in versions:
        assert admission.staged(version_id, 0.0) == ()
    return admission
