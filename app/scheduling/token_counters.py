"""Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

A tenant's counter grows by (prompt tokens + 2 x output tokens) / weight. The tenant with the smallest counter goes
first. As in the paper's variant with length prediction, a request is charged its expected cost at admission and settled
at its end. Differences from the paper:

- Each sequence of a request is charged separately. Its expected output is the tenant's moving average, or that of all
  tenants for a tenant without one. The ticket bounds it: clients ask for 4,096 tokens and use 30.
- Lifts use settled tokens only. Otherwise, one tenant's huge ``max_tokens`` could raise the floor and lift the others,
  and would then be refunded to that tenant alone.
- A tenant is lifted whenever it begins to compete, even while its requests run. Otherwise, one endless stream would
  accumulate credit for hours. A tenant does not compete with requests that wait for their adapter to be staged.
- The lift target is an earlier value of the floor. A tenant that was served less than the others may therefore catch
  up with a burst.
"""

from collections.abc import Iterator
from heapq import merge

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.queues import COLD, DRAINING, RESIDENT, STAGED, Request, SlotState, Tenant, TenantQueue
from app.scheduling.ranking import Numbered, Ranking

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0

#: Default burst credit in seconds: a tenant may catch up on the service that backlogged tenants got in one to two times
#: this period.
CREDIT_S = 1.0

#: Smoothing factor of the moving averages of output tokens.
_NEWEST = 0.1

#: Maximum number of idle tenants kept because their counters exceed the lift. The smallest counters are dropped first.
_IDLE_KEPT = 4096


def cost_of(prompt_tokens: float, output_tokens: float) -> float:
    """Return the weighted tokens of a request."""
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


class _Contenders:
    """Tenants that have a queue in one slot state, by counter.

    Attributes:
        all: all of them.
        new: new tenants with nothing in flight; see :class:`app.scheduling.queues.Tenant`.
    """

    __slots__ = ("all", "new")

    def __init__(self) -> None:
        self.all: Ranking[str, float] = Ranking()
        self.new: Ranking[str, float] = Ranking()

    def set(self, tenant: Tenant) -> None:
        """Add or update a tenant."""
        self.all.set(tenant.name, tenant.counter)
        if tenant.new and not tenant.running:
            self.new.set(tenant.name, tenant.counter)
        else:
            self.new.discard(tenant.name)

    def discard(self, name: str) -> None:
        """Remove a tenant if present."""
        self.all.discard(name)
        self.new.discard(name)

    def first(self, *, new: bool = False) -> tuple[float, str] | None:
        """Return the smallest counter and the name of its tenant; None if there is no tenant."""
        return self.new.first() if new else self.all.first()


class TokenCounters:
    """Virtual counters of all tenants, and the order among tenants that compete.

    A tenant competes while it has a request that waits only for a slot or for the window.

    Attributes:
        competitors: number of competing tenants.
        due: time of the next call of :meth:`note_floor`.
    """

    def __init__(self, credit_s: float = CREDIT_S) -> None:
        self._credit_s = credit_s
        self._tenants: dict[str, Tenant] = {}
        #: Competing tenants by counter, for each slot state under which they have a queue.
        self._resident, self._staged = _Contenders(), _Contenders()
        self._draining: Ranking[str, float] = Ranking()
        self.competitors = 0
        #: Idle tenants by counter, kept because their counter exceeds the lift.
        self._idle: Ranking[str, float] = Ranking()
        #: Floor: lower bound on the settled counters of competing tenants, updated when a tenant begins to compete.
        self._floor = 0.0
        #: Lift target: the floor ``credit_s`` or more before ``_since``; and the floor at ``_since``.
        self._lift = self._mark = 0.0
        self._since, self.due = 0.0, credit_s
        self._last: Tenant | None = None
        self._average: float | None = None
        #: Totals of all waiting requests, in the form of one tenant.
        self._all = Tenant("", 1.0)

    def __getitem__(self, name: str) -> Tenant:
        return self._tenants[name]

    def find(self, name: str) -> Tenant | None:
        """Return a tenant that waits, runs or has a counter above the lift; None otherwise."""
        return self._tenants.get(name)

    def busy(self) -> list[Tenant]:
        """Return the tenants with a waiting or running request."""
        return [tenant for tenant in self._tenants.values() if tenant.waiting or tenant.running]

    def competing(self) -> list[Tenant]:
        """Return the competing tenants."""
        return [self._tenants[name] for name in {**self._resident.all, **self._staged.all, **self._draining}]

    @property
    def staged(self) -> int:
        """Approximate number of tenants with a staged version that waits for a slot."""
        return len(self._staged.all)

    def least(self, *, slot_free: bool, new: bool = False) -> tuple[float, str] | None:
        """Return counter and name of the next tenant whose queues to examine.

        The caller checks that a queue has the slot state under which it is filed.

        Args:
            slot_free: True to include STAGED.
            new: True to consider only new tenants with nothing in flight.
        """
        first = self._resident.first(new=new)
        if slot_free and (other := self._staged.first(new=new)) is not None:
            return other if first is None else min(first, other)
        return first

    def in_order(self, *, slot_free: bool) -> Iterator[Tenant]:
        """Yield the tenants whose queues to examine, by counter; a tenant may occur twice."""
        rankings = [self._resident.all, self._staged.all] if slot_free else [self._resident.all]
        return (self._tenants[name] for _, name in merge(*map(_entries, rankings)))

    def tenant(self, ticket: AdmissionRequest) -> Tenant:
        """Return the ticket's tenant and update its weight."""
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            tenant = self._tenants[ticket.tenant] = Tenant(ticket.tenant, ticket.weight)
        if not (tenant.waiting or tenant.running):
            self._idle.discard(ticket.tenant)
        tenant.weight = ticket.weight
        return tenant

    def lifted(self, name: str) -> float:
        """Return a tenant's counter as it would be once it competes."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return self._lift
        return tenant.counter if _competes(tenant) else max(tenant.counter, self._lift)

    def is_new(self, name: str) -> bool:
        """Return whether a tenant would be new once it competes and has nothing in flight."""
        tenant = self._tenants.get(name)
        return tenant is None or (not tenant.running and (tenant.new or not _competes(tenant)))

    def note_floor(self, now: float) -> None:
        """Sample the floor, the lift target of tenants that begin to compete later."""
        # Stored: the next tenant must not rank before tenants that came just before it and were not served since.
        floor = self._floor = self._lowest()
        self._lift = self._mark if now - self._since < 2 * self._credit_s else floor
        self._mark, self._since, self.due = floor, now, now + self._credit_s

    def queue(self, request: Request, sign: int = 1) -> None:
        """Add a sequence to the totals of waiting requests; subtract it with sign -1."""
        tenant, totals = request.tenant, self._all
        prompt, output = sign * request.prompt_tokens, sign * request.ticket.output_tokens
        sequences = sign if request.ticket.sequences else 0
        tenant.waiting += sign
        tenant.prompt_tokens += prompt
        tenant.output_tokens += output
        tenant.sequences += sequences
        totals.prompt_tokens += prompt
        totals.output_tokens += output
        totals.sequences += sequences

    def show(self, queue: TenantQueue, slot_state: SlotState) -> None:
        """File a tenant queue under a slot state, or update its key there.

        The key is the number of its oldest request. New and empty queues are filed under COLD.
        """
        tenant, shown = queue.tenant, queue.shown
        if slot_state is shown:
            if slot_state is RESIDENT:
                _renumber(queue, tenant.resident)
            elif slot_state is STAGED:
                _renumber(queue, tenant.staged)
            return
        if shown is not COLD:
            self._take_out(queue)
        elif not _competes(tenant):
            self.competitors += 1
            self._floor = self._lowest()
            tenant.counter = max(tenant.counter, self._lift)
            tenant.new = True
        queue.shown = slot_state
        if slot_state is not COLD:
            self._put_in(queue)
        elif not _competes(tenant):
            self.competitors -= 1
            self._last = tenant

    def _take_out(self, queue: TenantQueue) -> None:
        tenant = queue.tenant
        if queue.shown is DRAINING:
            tenant.draining -= 1
            if not tenant.draining:
                self._draining.discard(tenant.name)
            return
        queues, tenants = (
            (tenant.resident, self._resident) if queue.shown is RESIDENT else (tenant.staged, self._staged)
        )
        queues.discard(queue.number)
        if not queues:
            tenants.discard(tenant.name)

    def _put_in(self, queue: TenantQueue) -> None:
        tenant = queue.tenant
        if queue.shown is DRAINING:
            tenant.draining += 1
            self._draining.set(tenant.name, tenant.counter)
            return
        queues, tenants = (
            (tenant.resident, self._resident) if queue.shown is RESIDENT else (tenant.staged, self._staged)
        )
        if not queues:
            tenants.set(tenant)
        queue.number = queue.first.number
        queues.add(queue.number, queue)

    def charge(self, request: Request) -> None:
        """Charge the expected cost of an admitted sequence, and set its start tag and preemption threshold."""
        ticket, tenant = request.ticket, request.tenant
        expected = self._expected(tenant, ticket.output_tokens, 1) if ticket.sequences else 0.0
        request.cost = cost_of(request.prompt_tokens, expected)
        request.share = request.cost / ticket.weight
        request.tag = tenant.counter
        request.threshold = tenant.counter - OUTPUT_WEIGHT * expected / ticket.weight
        tenant.outstanding += request.share
        tenant.running += 1
        tenant.new = False
        self._grow(tenant, request.share)

    def charge_more(self, request: Request, output_tokens: int) -> float:
        """Charge a sequence that has generated more than expected, for twice that number up to its maximum.

        Otherwise, a tenant with short answers in the past would get long ones at the same price.

        Returns:
            The additional charge in weighted tokens; 0 if the sequence is within its charge.
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
        """Replace the estimate of a finished sequence with its true counts; None keeps that part of the estimate.

        Returns:
            The true cost in weighted tokens.
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
        """Return the expected cost in weighted tokens of the waiting requests of a tenant, or of all."""
        tenant = tenant or self._all
        return cost_of(tenant.prompt_tokens, self._expected(tenant, tenant.output_tokens, tenant.sequences))

    def forget(self, tenant: Tenant) -> None:
        """Drop an idle tenant, unless its counter exceeds the lift."""
        if tenant.waiting or tenant.running:
            return
        self._idle.set(tenant.name, tenant.counter)
        while (entry := self._idle.first()) is not None and (entry[0] <= self._lift or len(self._idle) > _IDLE_KEPT):
            self._idle.discard(entry[1])
            del self._tenants[entry[1]]

    def _grow(self, tenant: Tenant, share: float) -> None:
        tenant.counter += share
        if tenant.resident:
            self._resident.set(tenant)
        if tenant.staged:
            self._staged.set(tenant)
        if tenant.draining:
            self._draining.set(tenant.name, tenant.counter)

    def _lowest(self) -> float:
        """Return the smallest settled counter of competing tenants, or of the last competitor; never decreases."""
        firsts = self._resident.first(), self._staged.first(), self._draining.first()
        least = min(filter(None, firsts), default=None)
        tenant = self._last if least is None else self._tenants[least[1]]
        return self._floor if tenant is None else max(self._floor, tenant.counter - tenant.outstanding)

    def _expected(self, tenant: Tenant, output_tokens: int, sequences: int) -> float:
        average = self._average if tenant.average is None else tenant.average
        return output_tokens if average is None else min(output_tokens, average * sequences)


def _competes(tenant: Tenant) -> bool:
    return bool(tenant.staged or tenant.resident or tenant.draining)


def _renumber(queue: TenantQueue, queues: Numbered[TenantQueue]) -> None:
    queues.discard(queue.number)
    queue.number = queue.first.number
    queues.add(queue.number, queue)


def _entries(ranking: Ranking[str, float]) -> Iterator[tuple[float, str]]:
    """Yield keys and items by key, lazily."""
    return ((ranking[name], name) for name in ranking.ordered())
