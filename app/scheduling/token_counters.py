"""Virtual token counters: whose request is next (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

A tenant's counter grows by (prompt tokens + 2 x output tokens) / weight; the tenant with the smallest counter goes
first. As in the paper's variant with length prediction, a request is charged what it is expected to cost when it is
admitted and settled when it ends. Three choices are ours:

- Each sequence of a request is charged by itself. Its expected output is the tenant's moving average (of a tenant
  without one, everybody's), bounded by the ticket: clients ask for 4,096 tokens and take 30.
- Lifts use settled tokens only. An estimate in the floor could be raised by one tenant's huge ``max_tokens``, lift
  the others, and be refunded to that tenant alone.
- A tenant is lifted whenever it begins to compete, not only when nothing of it runs: one endless stream would
  otherwise save credit for hours. Waiting for the adapter to be staged is not competing.
- It is lifted to what the floor was a moment ago, so that who was served less than the others may catch up with a
  burst.
"""

from collections.abc import Iterator
from heapq import merge

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.queues import COLD, DRAINING, OPEN, READY, Request, SlotState, Tenant, TenantQueue
from app.scheduling.ranking import Numbered, Ranking

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0

#: The default of the seconds, once to twice, of which a tenant may catch up what those who always wait were served.
CREDIT_S = 1.0

#: Weight of the newest request in the moving averages of output tokens.
_NEWEST = 0.1

#: Tenants with neither a request nor a counter that a lift would reach; more are forgotten, smallest counter first.
_IDLE_KEPT = 4096


def cost_of(prompt_tokens: float, output_tokens: float) -> float:
    """Weighted tokens of a request."""
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


class _Contenders:
    """Tenants that have a line in one place, by counter.

    Attributes:
        all: every one of them.
        new: those of them that are new, and have nothing in flight; see :class:`app.scheduling.queues.Tenant`.
    """

    __slots__ = ("all", "new")

    def __init__(self) -> None:
        self.all: Ranking[str, float] = Ranking()
        self.new: Ranking[str, float] = Ranking()

    def set(self, tenant: Tenant) -> None:
        """Add a tenant, or note what has changed of it."""
        self.all.set(tenant.name, tenant.counter)
        if tenant.new and not tenant.running:
            self.new.set(tenant.name, tenant.counter)
        else:
            self.new.discard(tenant.name)

    def discard(self, name: str) -> None:
        """Remove a tenant if it is there."""
        self.all.discard(name)
        self.new.discard(name)

    def first(self, *, new: bool = False) -> tuple[float, str] | None:
        """The smallest counter and whose it is, or None if there is nobody."""
        return self.new.first() if new else self.all.first()


class TokenCounters:
    """Every tenant's counter, and the order among those that have a request that could go.

    Attributes:
        competitors: how many tenants have a request that waits for no more than a slot and the window.
        due: when :meth:`note_floor` is to be called.
    """

    def __init__(self, credit_s: float = CREDIT_S) -> None:
        self._credit_s = credit_s
        self._tenants: dict[str, Tenant] = {}
        #: Tenants that compete, by counter: those with a line that is shown in that place.
        self._open, self._ready = _Contenders(), _Contenders()
        self._draining: Ranking[str, float] = Ranking()
        self.competitors = 0
        #: Those with nothing that waits or runs, by counter: kept because they owe more than a lift would give them.
        self._idle: Ranking[str, float] = Ranking()
        #: What the settled counter of everybody who competes was at least, when one last began to.
        self._floor = 0.0
        #: What a tenant is lifted to: the floor ``credit_s`` or more before ``_since``; and the floor then.
        self._lift = self._mark = 0.0
        self._since, self.due = 0.0, credit_s
        self._last: Tenant | None = None
        self._average: float | None = None
        #: All that waits, as if it were one tenant's.
        self._all = Tenant("", 1.0)

    def __getitem__(self, name: str) -> Tenant:
        return self._tenants[name]

    def find(self, name: str) -> Tenant | None:
        """A tenant that waits, runs or owes."""
        return self._tenants.get(name)

    def busy(self) -> list[Tenant]:
        """Tenants with a request that waits or runs."""
        return [tenant for tenant in self._tenants.values() if tenant.waiting or tenant.running]

    def competing(self) -> list[Tenant]:
        """The competitors."""
        return [self._tenants[name] for name in {**self._open.all, **self._ready.all, **self._draining}]

    @property
    def ready(self) -> int:
        """Tenants with a staged version that waits for a slot, more or less."""
        return len(self._ready.all)

    def least(self, *, slot_free: bool, new: bool = False) -> tuple[float, str] | None:
        """Counter and name of the tenant whose lines are to be looked at next.

        Whether one of its lines is where it is shown is for the caller to see.

        Args:
            slot_free: whether those in READY count too.
            new: whether only those do that are new, and have nothing in flight.
        """
        first = self._open.first(new=new)
        if slot_free and (other := self._ready.first(new=new)) is not None:
            return other if first is None else min(first, other)
        return first

    def in_order(self, *, slot_free: bool) -> Iterator[Tenant]:
        """The tenants whose lines are to be looked at, by counter; one may come twice."""
        rankings = [self._open.all, self._ready.all] if slot_free else [self._open.all]
        return (self._tenants[name] for _, name in merge(*map(_entries, rankings)))

    def tenant(self, ticket: AdmissionRequest) -> Tenant:
        """The ticket's tenant, with the ticket's weight from now on."""
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            tenant = self._tenants[ticket.tenant] = Tenant(ticket.tenant, ticket.weight)
        if not (tenant.waiting or tenant.running):
            self._idle.discard(ticket.tenant)
        tenant.weight = ticket.weight
        return tenant

    def lifted(self, name: str) -> float:
        """What a tenant's counter is once it competes."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return self._lift
        return tenant.counter if _competes(tenant) else max(tenant.counter, self._lift)

    def is_new(self, name: str) -> bool:
        """Whether a tenant is new once it competes, and has nothing in flight."""
        tenant = self._tenants.get(name)
        return tenant is None or (not tenant.running and (tenant.new or not _competes(tenant)))

    def note_floor(self, now: float) -> None:
        """Note what the floor is, for those that come later."""
        # Kept: who comes next must not go before those who came a moment ago and were served nothing since.
        floor = self._floor = self._lowest()
        self._lift = self._mark if now - self._since < 2 * self._credit_s else floor
        self._mark, self._since, self.due = floor, now, now + self._credit_s

    def queue(self, request: Request, sign: int = 1) -> None:
        """Count a request's sequence among those that wait; with sign -1, no longer."""
        tenant, everybody = request.tenant, self._all
        prompt, output = sign * request.prompt_tokens, sign * request.ticket.output_tokens
        sequences = sign if request.ticket.sequences else 0
        tenant.waiting += sign
        tenant.prompt_tokens += prompt
        tenant.output_tokens += output
        tenant.sequences += sequences
        everybody.prompt_tokens += prompt
        everybody.output_tokens += output
        everybody.sequences += sequences

    def show(self, line: TenantQueue, place: SlotState) -> None:
        """Show a line in a place, or its new oldest request in the same; one that is new or empty belongs in COLD."""
        tenant, shown = line.tenant, line.shown
        if place is shown:
            if place is OPEN:
                _renumber(line, tenant.open)
            elif place is READY:
                _renumber(line, tenant.ready)
            return
        if shown is not COLD:
            self._take_out(line)
        elif not _competes(tenant):
            self.competitors += 1
            self._floor = self._lowest()
            tenant.counter = max(tenant.counter, self._lift)
            tenant.new = True
        line.shown = place
        if place is not COLD:
            self._put_in(line)
        elif not _competes(tenant):
            self.competitors -= 1
            self._last = tenant

    def _take_out(self, line: TenantQueue) -> None:
        tenant = line.tenant
        if line.shown is DRAINING:
            tenant.draining -= 1
            if not tenant.draining:
                self._draining.discard(tenant.name)
            return
        lines, tenants = (tenant.open, self._open) if line.shown is OPEN else (tenant.ready, self._ready)
        lines.discard(line.number)
        if not lines:
            tenants.discard(tenant.name)

    def _put_in(self, line: TenantQueue) -> None:
        tenant = line.tenant
        if line.shown is DRAINING:
            tenant.draining += 1
            self._draining.set(tenant.name, tenant.counter)
            return
        lines, tenants = (tenant.open, self._open) if line.shown is OPEN else (tenant.ready, self._ready)
        if not lines:
            tenants.set(tenant)
        line.number = line.first.number
        lines.add(line.number, line)

    def charge(self, request: Request) -> None:
        """Charge the expected cost of a sequence that is admitted, and note where that puts it among those that run."""
        ticket, tenant = request.ticket, request.tenant
        expected = self._expected(tenant, ticket.output_tokens, 1) if ticket.sequences else 0.0
        request.cost = cost_of(request.prompt_tokens, expected)
        request.share = request.cost / ticket.weight
        request.tag = tenant.counter
        request.bar = tenant.counter - OUTPUT_WEIGHT * expected / ticket.weight
        tenant.outstanding += request.share
        tenant.running += 1
        tenant.new = False
        self._grow(tenant, request.share)

    def charge_more(self, request: Request, output_tokens: int) -> float:
        """Charge twice what a sequence has generated, or all that it may, once that is more than was expected.

        A tenant whose answers were short lately would else have long ones for the price of those.

        Returns: what was charged, in weighted tokens.
        """
        charged = (request.cost - PROMPT_WEIGHT * request.prompt_tokens) / OUTPUT_WEIGHT
        if output_tokens <= charged:
            return 0.0
        cost = OUTPUT_WEIGHT * (max(output_tokens, min(2 * output_tokens, request.ticket.output_tokens)) - charged)
        share, tenant = cost / request.ticket.weight, request.tenant
        request.cost += cost
        request.share += share
        tenant.outstanding += share
        self._grow(tenant, share)
        return cost

    def settle(self, request: Request, prompt_tokens: int | None, output_tokens: int | None) -> float:
        """Replace the estimate of a sequence that ends by its true counts; None leaves that part of the estimate.

        Returns: the true cost, in weighted tokens.
        """
        ticket, tenant = request.ticket, request.tenant
        estimated = (request.cost - PROMPT_WEIGHT * request.prompt_tokens) / OUTPUT_WEIGHT
        cost = cost_of(
            request.prompt_tokens if prompt_tokens is None else prompt_tokens,
            estimated if output_tokens is None else output_tokens,
        )
        tenant.running -= 1
        tenant.outstanding = tenant.outstanding - request.share if tenant.running else 0.0
        self._grow(tenant, cost / ticket.weight - request.share)
        if output_tokens is not None and ticket.sequences:
            own, common = tenant.average, self._average
            tenant.average = output_tokens if own is None else own + _NEWEST * (output_tokens - own)
            self._average = output_tokens if common is None else common + _NEWEST * (output_tokens - common)
        return cost

    def backlog(self, tenant: Tenant | None = None) -> float:
        """Weighted tokens that the waiting requests of a tenant, or of all, are expected to cost."""
        tenant = tenant or self._all
        return cost_of(tenant.prompt_tokens, self._expected(tenant, tenant.output_tokens, tenant.sequences))

    def forget(self, tenant: Tenant) -> None:
        """Drop a tenant that has nothing waiting or running, unless it owes more than a lift would give it."""
        if tenant.waiting or tenant.running:
            return
        self._idle.set(tenant.name, tenant.counter)
        while (entry := self._idle.first()) is not None and (entry[0] <= self._lift or len(self._idle) > _IDLE_KEPT):
            self._idle.discard(entry[1])
            del self._tenants[entry[1]]

    def _grow(self, tenant: Tenant, share: float) -> None:
        tenant.counter += share
        if tenant.open:
            self._open.set(tenant)
        if tenant.ready:
            self._ready.set(tenant)
        if tenant.draining:
            self._draining.set(tenant.name, tenant.counter)

    def _lowest(self) -> float:
        """The settled counter of the tenant with the smallest one, or of the last that competed; it never falls."""
        firsts = self._open.first(), self._ready.first(), self._draining.first()
        least = min(filter(None, firsts), default=None)
        tenant = self._last if least is None else self._tenants[least[1]]
        return self._floor if tenant is None else max(self._floor, tenant.counter - tenant.outstanding)

    def _expected(self, tenant: Tenant, output_tokens: int, sequences: int) -> float:
        average = self._average if tenant.average is None else tenant.average
        return output_tokens if average is None else min(output_tokens, average * sequences)


def _competes(tenant: Tenant) -> bool:
    return bool(tenant.ready or tenant.open or tenant.draining)


def _renumber(line: TenantQueue, lines: Numbered[TenantQueue]) -> None:
    lines.discard(line.number)
    line.number = line.first.number
    lines.add(line.number, line)


def _entries(ranking: Ranking[str, float]) -> Iterator[tuple[float, str]]:
    """Its keys and items by key, no further than they are asked for."""
    return ((ranking[name], name) for name in ranking.ordered())
