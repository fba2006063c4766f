"""Scheduler state of requests, tenants and versions, kept while any of their requests waits or runs."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sortedcontainers import SortedList

from app.scheduling.admission_request import AdmissionRequest

#: Version id of the base model; ids of versions are positive.
BASE = -1


class SlotState(StrEnum):
    """Slot state of a version, which decides what its waiting requests need."""

    RESIDENT = "resident"  # in a slot, or needs no slot: requests need only a place in the window
    STAGED = "staged"  # in host memory: requests need a free slot too
    DRAINING = "draining"  # the version gives its slot up and admits no request
    COLD = "cold"  # not staged yet


#: Module-level names, because attribute access on an Enum is slower. See
#: docs/decisions/0033-scheduler-data-structures.md.
RESIDENT, STAGED, DRAINING, COLD = SlotState


class RequestQueue(OrderedDict[str, "Request"]):
    """FIFO queue of requests by name."""

    __slots__ = ()

    @property
    def oldest(self) -> "Request":
        """The oldest request; the queue is not empty."""
        return next(iter(self.values()))


class OrderKey(NamedTuple):
    """Place of a tenant in the orders by counter.

    Attributes:
        states: slot states under which it has a queue.
        new: True if it is new and has nothing in flight.
    """

    counter: float
    states: tuple[SlotState, ...]
    new: bool


_NO_QUEUES = OrderKey(0.0, (), new=False)


@dataclass(slots=True, eq=False)
class Tenant:
    """Virtual counter and requests of one tenant.

    Attributes:
        counter: weighted tokens charged, each divided by the weight at the time.
        new: True if no request was admitted since the tenant began to compete.
        outstanding: part of ``counter`` that is estimated, for running requests.
        prefill_backlog: prompt tokens admitted to the engine and not prefilled.
        prompt_tokens, output_tokens, sequences: sums over the waiting sequences.
        average: moving average of output tokens per sequence; None before the first.
        queues: its queues by slot state under which they are filed, except COLD; oldest request first. States without a
            queue are absent.
        longest: the same queues, longest first.
        key: its place in the orders by counter, see :class:`app.scheduling.token_counters.TokenCounters`.
    """

    name: str
    weight: float
    counter: float = 0.0
    new: bool = False
    outstanding: float = 0.0
    running: int = 0
    waiting: int = 0
    prefill_backlog: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    sequences: int = 0
    average: float | None = None
    queues: "defaultdict[SlotState, SortedList[tuple[int, TenantQueue]]]" = field(
        default_factory=lambda: defaultdict(SortedList)
    )
    longest: "SortedList[tuple[int, int, TenantQueue]]" = field(default_factory=SortedList)
    key: OrderKey = _NO_QUEUES


@dataclass(slots=True, eq=False)
class Version:
    """Requests and slot of one version; the base model is a version that needs no slot.

    Attributes:
        waiting: its waiting requests.
        queues: queues of the requests that take places in the window, by tenant.
        holds_slot: True if it has a slot; then one of its requests runs, or it is pinned.
        filling: True until all requests that waited when it got its slot are admitted.
        drains_since: time at which it began to drain; None if it does not.
        closed_at: time at which it last stopped admitting requests; its wait for a slot begins no earlier.
        closed: event number of ``closed_at``.
        began: event number of the start of its wait for a slot; -1 if it does not wait.
        since: time of the start of the wait.
        ahead: number of versions that were waiting then.
        aged: True if it has waited longer than the maximum age.
        limit: overtaking budget of an aged version, see :mod:`app.scheduling.slot_waits`.
        until: latest start of a drain for it, see :mod:`app.scheduling.slot_waits`.
        service: weighted tokens charged since it got its slot.
    """

    version_id: int
    slot_state: SlotState
    running: int = 0
    waiting: RequestQueue = field(default_factory=RequestQueue)
    queues: dict[str, "TenantQueue"] = field(default_factory=dict)
    holds_slot: bool = False
    pinned: bool = False
    filling: bool = False
    drains_since: float | None = None
    closed_at: float = float("-inf")
    closed: int = -1
    began: int = -1
    since: float = 0.0
    ahead: int = 0
    aged: bool = False
    limit: float = 0.0
    until: float = 0.0
    service: float = 0.0


@dataclass(slots=True, eq=False)
class TenantQueue:
    """Requests of one tenant that wait for one version and need places in the window.

    Attributes:
        slot_state: slot state under which the tenant's sorted lists contain the queue; COLD if they do not. See
            :class:`app.scheduling.fair_order.FairOrder`.
        number: number of its oldest request there.
        rank: its rank by length there.
    """

    tenant: Tenant
    version: Version
    requests: RequestQueue = field(default_factory=RequestQueue)
    slot_state: SlotState = COLD
    number: int = -1
    rank: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One waiting or running sequence of a request; the next one is enqueued when this one is admitted.

    Attributes:
        parent: admission request that the sequence belongs to.
        sequence: index of the sequence in it.
        name: id of the sequence.
        prompt_tokens: prompt tokens that it adds.
        number: event number of its arrival; later arrivals have greater numbers.
        arrived: time of arrival.
        started: time of admission.
        cost: weighted tokens charged for it so far.
        share: part of its tenant's counter charged for it.
        first: True if its tenant had nothing else in flight at admission; ranks before all that are not.
        start_tag: its tenant's counter at admission; the smallest tags have the places.
        threshold: preemption threshold: the start tag less the charge for the output. A smaller counter may preempt it.
        prefill_backlog: tokens that its prompt counts for in the prefill backlog.
    """

    parent: AdmissionRequest
    sequence: int
    number: int
    arrived: float
    tenant: Tenant
    version: Version
    name: str = field(init=False)
    prompt_tokens: int = field(init=False)
    running: bool = False
    first: bool = False
    started: float = 0.0
    cost: float = 0.0
    share: float = 0.0
    start_tag: float = 0.0
    threshold: float = 0.0
    prefill_backlog: float = 0.0

    def __post_init__(self) -> None:
        self.name, self.prompt_tokens = self.parent.name(self.sequence), self.parent.prompt_tokens(self.sequence)
