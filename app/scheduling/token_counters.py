"""Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

A tenant's counter grows by (prompt tokens + 2 x output tokens) / weight. The tenant with the smallest counter goes
first. As in the paper's variant with length prediction, a request is charged its expected cost at admission and settled
at its end. Differences from the paper:

- Each sequence of a request is charged separately. Its expected output is the tenant's moving average, or that of all
  tenants for a tenant without one. The request bounds it: clients ask for 4,096 tokens and use 30.
- Lifts use settled tokens only. Otherwise, one tenant's huge ``max_tokens`` could raise the floor and lift the others,
  and would then be refunded to that tenant alone.
- A tenant is lifted whenever it begins to compete, even while its requests run. Otherwise, one endless stream would
  accumulate credit for hours. A tenant does not compete with requests that wait for their adapter to be staged.
- The lift target is an earlier value of the floor. A tenant that was served less than the others may therefore catch
  up with a burst.
"""

from collections.abc import Iterable, Iterator
from heapq import merge

from sortedcontainers import SortedList

from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.queues import DRAINING, RESIDENT, STAGED, OrderKey, Request, SlotState, Tenant

#: Tenants by counter and name, for each slot state under which they have a queue.
Orders = dict[SlotState, "SortedList[tuple[float, str]]"]

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


class TokenCounters:
    """Virtual counters of all tenants, and the order among tenants that compete.

    A tenant competes while it has a request that waits only for a slot or for the window.

    Attributes:
        due: time of the next call of :meth:`note_floor`.
    """

    def __init__(self, credit_s: float = CREDIT_S) -> None:
        self._credit_s = credit_s
        self._tenants: dict[str, Tenant] = {}
        #: All competing tenants, and the new ones with nothing in flight.
        self._orders: Orders = {slot_state: SortedList() for slot_state in (RESIDENT, STAGED, DRAINING)}
        self._new: Orders = {slot_state: SortedList() for slot_state in (RESIDENT, STAGED, DRAINING)}
        #: Counter and name of idle tenants, kept because their counter exceeds the lift.
        self._idle: SortedList[tuple[float, str]] = SortedList()
        #: Floor: lower bound on the settled counters of competing tenants, updated when a tenant begins to compete.
        self._floor = 0.0
        #: Lift target: the floor ``credit_s`` or more before ``_since``; and the floor at ``_since``.
        self._lift = self._mark = 0.0
        self._since, self.due = 0.0, credit_s
        self._last: Tenant | None = None
        self._average: float | None = None
        #: Totals of all waiting requests, in the form of one tenant.
        self._all = Tenant("", 1.0)

    def find(self, name: str) -> Tenant | None:
        """Return a tenant that waits, runs or has a counter above the lift; None otherwise."""
        return self._tenants.get(name)

    def busy(self) -> list[Tenant]:
        """Return the tenants with a waiting or running request."""
        return [tenant for tenant in self._tenants.values() if tenant.waiting or tenant.running]

    def competing(self) -> list[Tenant]:
        """Return the competing tenants."""
        return [self._tenants[name] for name in {name for order in self._orders.values() for _, name in order}]

    @property
    def contended(self) -> bool:
        """True if a tenant competes."""
        return any(self._orders.values())

    @property
    def staged(self) -> int:
        """Approximate number of tenants with a staged version that waits for a slot."""
        return len(self._orders[STAGED])

    def first(self, states: Iterable[SlotState], *, new: bool = False) -> Tenant | None:
        """Return the tenant with the smallest counter among those with queues filed under these slot states.

        Args:
            states: slot states, without COLD.
            new: True to consider only new tenants with nothing in flight.
        """
        orders = self._new if new else self._orders
        firsts = [orders[slot_state][0] for slot_state in states if orders[slot_state]]
        return self._tenants[min(firsts)[1]] if firsts else None

    def in_order(self, states: Iterable[SlotState]) -> Iterator[Tenant]:
        """Yield these tenants by counter, as of the first one; a tenant may occur twice."""
        orders = [list(self._orders[slot_state]) for slot_state in states]
        return (self._tenants[name] for _, name in merge(*orders))

    def tenant(self, request: AdmissionRequest) -> Tenant:
        """Return the request's tenant and update its weight."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = Tenant(request.tenant, request.weight)
        if not (tenant.waiting or tenant.running):
            self._idle.discard((tenant.counter, tenant.name))
        tenant.weight = request.weight
        return tenant

    def lifted(self, name: str) -> float:
        """Return a tenant's counter as it would be once it competes."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return self._lift
        return tenant.counter if tenant.queues else max(tenant.counter, self._lift)

    def is_new(self, name: str) -> bool:
        """Return whether a tenant would be new once it competes and has nothing in flight."""
        tenant = self._tenants.get(name)
        return tenant is None or (not tenant.running and (tenant.new or not tenant.queues))

    def note_floor(self, now: float) -> None:
        """Sample the floor, the lift target of tenants that begin to compete later."""
        # Stored: the next tenant must not rank before tenants that came just before it and were not served since.
        floor = self._floor = self._lowest()
        self._lift = self._mark if now - self._since < 2 * self._credit_s else floor
        self._mark, self._since, self.due = floor, now, now + self._credit_s

    def queue(self, request: Request, sign: int = 1) -> None:
        """Add a sequence to the totals of waiting requests; subtract it with sign -1."""
        tenant, totals = request.tenant, self._all
        prompt, output = sign * request.prompt_tokens, sign * request.parent.output_tokens
        sequences = sign if request.parent.sequences else 0
        tenant.waiting += sign
        tenant.prompt_tokens += prompt
        tenant.output_tokens += output
        tenant.sequences += sequences
        totals.prompt_tokens += prompt
        totals.output_tokens += output
        totals.sequences += sequences

    def reorder(self, tenant: Tenant) -> None:
        """Update a tenant in the orders by counter, after a change of its counter or its queues."""
        before = tenant.key
        if tenant.queues and not before.states:
            self._floor = self._lowest()
            tenant.counter = max(tenant.counter, self._lift)
            tenant.new = True
        elif before.states and not tenant.queues:
            self._last = tenant
        tenant.key = OrderKey(tenant.counter, tuple(tenant.queues), new=tenant.new and not tenant.running)
        if tenant.key == before:
            return
        for order in self._orders_of(before):
            order.remove((before.counter, tenant.name))
        for order in self._orders_of(tenant.key):
            order.add((tenant.counter, tenant.name))

    def _orders_of(self, key: OrderKey) -> "list[SortedList[tuple[float, str]]]":
        kinds = (self._orders, self._new) if key.new else (self._orders,)
        return [orders[slot_state] for orders in kinds for slot_state in key.states]

    def charge(self, request: Request) -> None:
        """Charge the expected cost of an admitted sequence, and set its start tag and preemption threshold."""
        parent, tenant = request.parent, request.tenant
        expected = self._expected(tenant, parent.output_tokens, 1) if parent.sequences else 0.0
        request.cost = cost_of(request.prompt_tokens, expected)
        request.share = request.cost / parent.weight
        request.start_tag = tenant.counter
        request.threshold = tenant.counter - OUTPUT_WEIGHT * expected / parent.weight
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
        cost = OUTPUT_WEIGHT * (max(output_tokens, min(2 * output_tokens, request.parent.output_tokens)) - charged)
        share, tenant = cost / request.parent.weight, request.tenant
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
        parent, tenant = request.parent, request.tenant
        estimated = (request.cost - PROMPT_WEIGHT * request.prompt_tokens) / OUTPUT_WEIGHT
        cost = cost_of(
            request.prompt_tokens if prompt_tokens is None else prompt_tokens,
            estimated if output_tokens is None else output_tokens,
        )
        tenant.running -= 1
        tenant.outstanding = tenant.outstanding - request.share if tenant.running else 0.0
        self._grow(tenant, cost / parent.weight - request.share)
        if output_tokens is not None and parent.sequences:
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
        self._idle.add((tenant.counter, tenant.name))
        while self._idle and (self._idle[0][0] <= self._lift or len(self._idle) > _IDLE_KEPT):
            _, name = self._idle.pop(0)
            del self._tenants[name]

    def _grow(self, tenant: Tenant, share: float) -> None:
        tenant.counter += share
        if tenant.queues:
            self.reorder(tenant)

    def _lowest(self) -> float:
        """Return the smallest settled counter of competing tenants, or of the last competitor; never decreases."""
        tenant = self.first(self._orders) or self._last
        return self._floor if tenant is None else max(self._floor, tenant.counter - tenant.outstanding)

    def _expected(self, tenant: Tenant, output_tokens: int, sequences: int) -> float:
        average = self._average if tenant.average is None else tenant.average
        return output_tokens if average is None else min(output_tokens, average * sequences)
