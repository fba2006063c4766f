"""What the scheduler keeps of requests, of tenants and of versions while any of their requests waits or runs."""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.ranking import Numbered

#: The base model where a version is asked for; versions' ids are positive.
BASE = -1


class SlotState(Enum):
    """Where the requests that wait for one version stand."""

    OPEN = "open"  # the version needs no slot or has one: they need only a place in the window
    READY = "ready"  # the version is staged: they need a free slot too
    DRAINING = "draining"  # the version holds a slot that another one is to have
    COLD = "cold"  # the version cannot be copied into a slot yet


class Wait(Enum):
    """What a version's wait for a slot has come to; see :mod:`app.scheduling.slot_waits`."""

    NONE = "none"
    YOUNG = "young"
    OLD = "old"
    LEAVING = "leaving"  # old too, and it drains: it has a slot still


#: By names of their own: a decision asks for two dozen, and each as an attribute would take five times as long.
OPEN, READY, DRAINING, COLD = SlotState
NONE, YOUNG, OLD, LEAVING = Wait


class Waiting:
    """Requests, the oldest first.

    Attributes:
        count: how many.
        first: the oldest; there is none where none is left.
    """

    __slots__ = ("_later", "count", "first")
    first: "Request"

    def __init__(self) -> None:
        self.count = 0
        #: The others by id. Most queues are of one request: a dictionary of each would be most of what is kept, and a
        #: decision takes as long as it waits for memory.
        self._later: OrderedDict[str, Request] | None = None

    def add(self, request: "Request") -> None:
        """Put a request behind the others."""
        if not self.count:
            self.first = request
        else:
            if self._later is None:
                self._later = OrderedDict()
            self._later[request.name] = request
        self.count += 1

    def remove(self, request: "Request") -> bool:
        """Take one out; returns whether it was the oldest.

        Raises:
            KeyError: it is not there.
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
            del self.first  # a request knows its version, and with it this
        self.count -= 1
        return oldest


class Queue:
    """A version's requests, the oldest first: a list that is linked both ways.

    It reads as :class:`Waiting` does. Most versions have a few requests, and a dictionary of them would be most of what
    a decision touches in memory; a request's links lie with the rest of it.
    """

    __slots__ = ("_last", "count", "first")
    first: "Request"

    def __init__(self) -> None:
        self.count = 0
        self._last: Request | None = None

    def add(self, request: "Request") -> None:
        """Put a request behind the others."""
        last = self._last
        if last is None:
            self.first = request
        else:
            last.newer, request.older = request, last
        self._last = request
        self.count += 1

    def remove(self, request: "Request") -> bool:
        """Take one out; returns whether it was the oldest.

        Raises:
            KeyError: it is not there.
        """
        older, newer = request.older, request.newer
        if older is not None:
            older.newer = newer
        elif not self.count or request is not self.first:
            raise KeyError(request.name)
        elif newer is not None:
            self.first = newer
        else:
            del self.first  # a request knows its version, and with it this
        if newer is not None:
            newer.older = older
        else:
            self._last = older
        request.older = request.newer = None
        self.count -= 1
        return older is None


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant's counter and its requests.

    Attributes:
        counter: weighted tokens charged, over the weight at the time.
        new: nothing of it was admitted since it began to compete.
        outstanding: the part of ``counter`` that is an estimate, of requests that run.
        unread: tokens of prompts that were given to the engine and are not read.
        prompt_tokens, output_tokens, sequences: sums over the sequences that wait.
        average: of the true output tokens per sequence lately, or None before the first.
        open, ready: its lines that are shown in these places, by the number of each line's oldest request.
        draining: how many are shown in DRAINING.
        crowded: its lines by rank; see :mod:`app.scheduling.longest_queue`.
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
    open: "Numbered[TenantQueue]" = field(default_factory=Numbered)
    ready: "Numbered[TenantQueue]" = field(default_factory=Numbered)
    draining: int = 0
    crowded: "Numbered[TenantQueue]" = field(default_factory=Numbered)


@dataclass(slots=True, eq=False)
class Version:
    """One version's requests and its slot; the base model is one that needs none.

    Attributes:
        place: where those that wait for it stand.
        shown: where its lines are shown, unless it is ``scattered`` and each may be elsewhere.
        waiting: its requests.
        lines: those of them that take places in the window, by tenant.
        parked: see :mod:`app.scheduling.longest_queue`; None for none.
        holds_slot: it has one; then a request of it runs, or it is pinned.
        filling: it has not let in yet all that waited for it when it got its slot.
        drains_since: when it began to drain, or None.
        closed_at: when it last ceased to be open for joining, and ``closed`` the number of that among all events; its
            wait for a slot begins no earlier.
        wait: what its wait for a slot has come to; ``began`` is the number of the event that it began with, ``since``
            the time of that.
        ahead: versions that waited then.
        limit: see :mod:`app.scheduling.slot_waits`; of those that have waited too long. ``until`` is of all that wait.
        service: weighted tokens charged since it got its slot.
    """

    version_id: int
    place: SlotState
    shown: SlotState
    scattered: bool = False
    running: int = 0
    waiting: Queue = field(default_factory=Queue)
    lines: dict[str, "TenantQueue"] = field(default_factory=dict)
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
    """Requests of one tenant that wait for one version and will take places in the window; there is one at least.

    ``shown`` is the place under which its tenant's order has it, ``number`` its number there. The place follows the
    version's late, and not at all to DRAINING: a slot's coming and going would else cost each time as much as the
    version has lines. ``rank`` is that of a crowd, 0 if it is none.
    """

    __slots__ = ("number", "rank", "shown", "tenant", "version")

    def __init__(self, tenant: Tenant, version: Version) -> None:
        # Not by Waiting's own: most requests have a line made for them.
        self.count, self._later = 0, None
        self.tenant, self.version, self.shown, self.number, self.rank = tenant, version, COLD, -1, 0


@dataclass(slots=True, eq=False)
class Request:
    """One sequence of a request that waits or runs; the next one enters as it is admitted.

    Attributes:
        sequence: which of the ticket's; ``name`` is its id.
        prompt_tokens: that it brings.
        number: of its entering among all events; later ones have greater numbers.
        arrived: when it entered; ``started``: when it was admitted.
        line: where it waits, if it takes places in the window.
        cost: weighted tokens that were charged for it when it was admitted.
        share: what that added to its tenant's counter.
        first: it was its tenant's only one in flight when it was admitted, and goes before all that are not.
        tag: its tenant's counter when it was admitted; those with the smallest have the places.
        bar: the tag less what was charged for the output; who has a smaller counter may have its place.
        unread: tokens that its prompts count as while the engine has not read them.
        older, newer: those beside it in its version's queue.
    """

    ticket: AdmissionRequest
    sequence: int
    number: int
    arrived: float
    tenant: Tenant
    version: Version
    name: str = field(init=False)
    prompt_tokens: int = field(init=False)
    line: TenantQueue = field(init=False)
    running: bool = False
    first: bool = False
    started: float = 0.0
    cost: float = 0.0
    share: float = 0.0
    tag: float = 0.0
    bar: float = 0.0
    unread: float = 0.0
    older: "Request | None" = None
    newer: "Request | None" = None

    def __post_init__(self) -> None:
        self.name, self.prompt_tokens = self.ticket.name(self.sequence), self.ticket.prompt_tokens(self.sequence)
