"""Scheduler state of requests, tenants and versions, kept while any of their requests waits or runs."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.ranking import Numbered

#: Version id of the base model; ids of versions are positive.
BASE = -1


class SlotState(Enum):
    """Slot state of a version, which decides what its waiting requests need."""

    RESIDENT = "resident"  # in a slot, or needs no slot: requests need only a place in the window
    STAGED = "staged"  # in host memory: requests need a free slot too
    DRAINING = "draining"  # the version gives its slot up and admits no request
    COLD = "cold"  # not staged yet


class Wait(Enum):
    """Ageing state of a version's wait for a slot; see :mod:`app.scheduling.slot_waits`."""

    NONE = "none"
    YOUNG = "young"
    OLD = "old"
    LEAVING = "leaving"  # aged, while the version still holds a slot and drains


#: Module-level names, because attribute access on an Enum is slower. See
#: docs/decisions/0033-scheduler-data-structures.md.
RESIDENT, STAGED, DRAINING, COLD = SlotState
NONE, YOUNG, OLD, LEAVING = Wait


class Waiting:
    """FIFO queue of requests with removal by id.

    Attributes:
        count: number of requests.
        first: the oldest request; unset if the queue is empty.
    """

    __slots__ = ("_later", "count", "first")
    first: "Request"

    def __init__(self) -> None:
        self.count = 0
        #: The other requests by id. Created on demand, because most queues hold one request. See
        #: docs/decisions/0033-scheduler-data-structures.md.
        self._later: OrderedDict[str, Request] | None = None

    def add(self, request: "Request") -> None:
        """Append a request."""
        if not self.count:
            self.first = request
        else:
            if self._later is None:
                self._later = OrderedDict()
            self._later[request.name] = request
        self.count += 1

    def remove(self, request: "Request") -> bool:
        """Remove a request and return whether it was the oldest.

        Raises:
            KeyError: the request is not in the queue.
        """
        later = self._later
        oldest = self.count > 0 and request is self.first
        if not oldest:
            if later is None:
                raise KeyError(request.name)
            del later[request.name]
        elif later:
            self.first = later.popitem(last=False)[1]
        else:
            del self.first  # breaks the reference cycle: a request refers to its version
        self.count -= 1
        return oldest


class Queue:
    """FIFO queue of a version's requests: an intrusive doubly linked list.

    It has the interface of :class:`Waiting`. The links are fields of the requests, so that a short queue needs no
    dictionary. See docs/decisions/0033-scheduler-data-structures.md.
    """

    __slots__ = ("_last", "count", "first")
    first: "Request"

    def __init__(self) -> None:
        self.count = 0
        self._last: Request | None = None

    def add(self, request: "Request") -> None:
        """Append a request."""
        last = self._last
        if last is None:
            self.first = request
        else:
            last.newer, request.older = request, last
        self._last = request
        self.count += 1

    def remove(self, request: "Request") -> bool:
        """Remove a request and return whether it was the oldest.

        Raises:
            KeyError: the request is not in the queue.
        """
        older, newer = request.older, request.newer
        if older is not None:
            older.newer = newer
        elif not self.count or request is not self.first:
            raise KeyError(request.name)
        elif newer is not None:
            self.first = newer
        else:
            del self.first  # breaks the reference cycle: a request refers to its version
        if newer is not None:
            newer.older = older
        else:
            self._last = older
        request.older = request.newer = None
        self.count -= 1
        return older is None


@dataclass(slots=True, eq=False)
class Tenant:
    """Virtual counter and requests of one tenant.

    Attributes:
        counter: weighted tokens charged, each divided by the weight at the time.
        new: True if no request was admitted since the tenant began to compete.
        outstanding: part of ``counter`` that is estimated, for running requests.
        unread: prompt tokens admitted to the engine and not prefilled.
        prompt_tokens, output_tokens, sequences: sums over the waiting sequences.
        average: moving average of output tokens per sequence; None before the first.
        resident, staged: its queues filed under these slot states, by number of the oldest request of each queue.
        draining: number of its queues filed under DRAINING.
        crowded: its queues by rank; see :mod:`app.scheduling.longest_queue`.
    """

    name: str
    weight: float
    counter: float = 0.0
    new: bool = False
    outstanding: float = 0.0
    running: int = 0
    waiting: int = 0
    unread: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    sequences: int = 0
    average: float | None = None
    resident: "Numbered[TenantQueue]" = field(default_factory=Numbered)
    staged: "Numbered[TenantQueue]" = field(default_factory=Numbered)
    draining: int = 0
    crowded: "Numbered[TenantQueue]" = field(default_factory=Numbered)


@dataclass(slots=True, eq=False)
class Version:
    """Requests and slot of one version; the base model is a version that needs no slot.

    Attributes:
        place: its slot state.
        shown: slot state under which its queues are filed; not valid for all of them while ``scattered``.
        scattered: True if its queues may be filed under different slot states.
        waiting: its waiting requests.
        queues: queues of the requests that take places in the window, by tenant.
        parked: parked queues, see :mod:`app.scheduling.longest_queue`; None if there are none.
        holds_slot: True if it has a slot; then one of its requests runs, or it is pinned.
        filling: True until all requests that waited when it got its slot are admitted.
        drains_since: time at which it began to drain; None if it does not.
        closed_at: time at which it last stopped admitting requests; its wait for a slot begins no earlier.
        closed: event number of ``closed_at``.
        wait: ageing state of its wait for a slot.
        began: event number of the start of the wait.
        since: time of the start of the wait.
        ahead: number of versions that were waiting then.
        limit: overtaking budget of an aged version, see :mod:`app.scheduling.slot_waits`.
        until: latest start of a drain for it, see :mod:`app.scheduling.slot_waits`.
        service: weighted tokens charged since it got its slot.
    """

    version_id: int
    slot_state: SlotState
    shown: SlotState
    scattered: bool = False
    running: int = 0
    waiting: Queue = field(default_factory=Queue)
    queues: dict[str, "TenantQueue"] = field(default_factory=dict)
    parked: "set[TenantQueue] | None" = None
    holds_slot: bool = False
    pinned: bool = False
    filling: bool = False
    drains_since: float | None = None
    closed_at: float = float("-inf")
    closed: int = -1
    wait: Wait = NONE
    began: int = -1
    since: float = 0.0
    ahead: int = 0
    limit: float = 0.0
    until: float = 0.0
    service: float = 0.0


class TenantQueue(Waiting):
    """Requests of one tenant that wait for one version and need places in the window; never empty.

    Attributes:
        shown: slot state under which the queue is filed in the tenant's order. It follows the version's state lazily,
            to DRAINING only when a look-up finds the queue. Otherwise, each slot change would cost time linear in the
            version's queues.
        number: its key in that order.
        rank: rank by length, see :mod:`app.scheduling.longest_queue`; 0 if it has none.
    """

    __slots__ = ("number", "rank", "shown", "tenant", "version")

    def __init__(self, tenant: Tenant, version: Version) -> None:
        # Initialised without super(), because most requests create a queue.
        self.count, self._later = 0, None
        self.tenant, self.version, self.shown, self.number, self.rank = tenant, version, COLD, -1, 0


@dataclass(slots=True, eq=False)
class Request:
    """One waiting or running sequence of a request; the next one is enqueued when this one is admitted.

    Attributes:
        sequence: index of the sequence in its ticket.
        name: id of the sequence.
        prompt_tokens: prompt tokens that it adds.
        number: event number of its arrival; later arrivals have greater numbers.
        arrived: time of arrival.
        started: time of admission.
        queue: its tenant queue, if it takes a place in the window.
        cost: weighted tokens charged for it so far.
        share: part of its tenant's counter charged for it.
        first: True if its tenant had nothing else in flight at admission; ranks before all that are not.
        tag: start tag: its tenant's counter at admission; the smallest tags have the places.
        threshold: preemption threshold: the tag less the charge for the output. A smaller counter may preempt it.
        unread: tokens that its prompt counts for in the prefill backlog.
        older, newer: neighbours in the queue of its version.
    """

    ticket: AdmissionRequest
    sequence: int
    number: int
    arrived: float
    tenant: Tenant
    version: Version
    name: str = field(init=False)
    prompt_tokens: int = field(init=False)
    queue: TenantQueue = field(init=False)
    running: bool = False
    first: bool = False
    started: float = 0.0
    cost: float = 0.0
    share: float = 0.0
    tag: float = 0.0
    threshold: float = 0.0
    unread: float = 0.0
    older: "Request | None" = None
    newer: "Request | None" = None

    def __post_init__(self) -> None:
        self.name, self.prompt_tokens = self.ticket.name(self.sequence), self.ticket.prompt_tokens(self.sequence)
