"""Tenants in the reference model: virtual counters and the fair order."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from app.scheduling.prefill_backlog import STEPS
from tests.support.scheduling.records import Account, Request


@dataclass(eq=False, kw_only=True)
class Shares:
    """Tenants' accounts, the window and the prefill backlog.

    See :mod:`app.scheduling.token_counters` and :mod:`app.scheduling.prefill_backlog`.
    """

    window: int
    credit_s: float
    step_tokens: float = inf
    requests: dict[str, Request] = field(default_factory=dict)
    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    claimants: set[str] = field(default_factory=set)
    now: float = 0.0
    floor: float = 0.0
    marks: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0), (0.0, 0.0)])
    last: Account | None = None
    average: float | None = None

    def tick(self, now: float) -> None:
        """Advance the clock and sample the floor.

        Two samples are at least ``credit_s`` seconds apart, and the older one is the lift target.
        """
        self.now = now
        since = self.marks[1][0]
        if now >= since + self.credit_s:
            self.floor = self.lowest()
            mark = (now, self.floor)
            self.marks = [self.marks[1] if now - since < 2 * self.credit_s else mark, mark]

    def in_flight(self, tenant: str | None = None) -> int:
        running = [request.parent for request in self.requests.values() if request.running]
        return sum(request.sequences > 0 for request in running if tenant in (None, request.tenant))

    def firsts(self) -> int:
        """Return the number of further firsts allowed; they go before all other requests."""
        return self.window // 2 - sum(request.first for request in self.requests.values())

    def may_be_first(self, tenant: str) -> bool:
        return self.firsts() > 0 and not self.in_flight(tenant)

    def is_new(self, tenant: str) -> bool:
        return self.accounts[tenant].new and not self.in_flight(tenant)

    def before(self, counter: float) -> int:
        """Return the number of running sequences that a tenant with this counter may not preempt."""
        return sum(r.parent.sequences > 0 for r in self.requests.values() if r.running and r.threshold <= counter)

    def prefill_backlog(self, tenant: str | None = None) -> float:
        """Return the prefill backlog in tokens, of one tenant or of all."""
        backlog = [request for request in self.requests.values() if request.running and not request.prefilled]
        return sum(self.counted(r.prompt_tokens) for r in backlog if tenant in (None, r.parent.tenant))

    def counted(self, tokens: int) -> float:
        """Return the tokens that a prompt counts for, at most a tenant's part."""
        return min(tokens, STEPS * self.step_tokens)

    def fills_part(self, request: Request) -> bool:
        """Return whether its tenant has a prefill backlog and would exceed its part of it."""
        own = self.prefill_backlog(request.parent.tenant)
        return own > 0 and own + self.counted(request.prompt_tokens) > STEPS * self.step_tokens

    def lowest(self) -> float:
        if self.claimants:
            first = self.accounts[min((self.accounts[name].counter, name) for name in self.claimants)[1]]
        elif self.last is not None:
            first = self.last
        else:
            return self.floor
        return max(self.floor, first.counter - first.outstanding)

    def lift(self, competing: set[str]) -> None:
        """Set the competing tenants, and lift those that begin to compete."""
        for name in sorted(self.claimants - competing):
            self.claimants.discard(name)
            self.last = self.accounts[name]
        for name in sorted(competing - self.claimants):
            self.floor = self.lowest()
            self.accounts[name].counter = max(self.accounts[name].counter, self.marks[0][1])
            self.accounts[name].new = True
            self.claimants.add(name)

    def charge(self, request: Request) -> None:
        """Charge the expected cost of a request."""
        parent, account = request.parent, self.accounts[request.parent.tenant]
        average = self.average if account.average is None else account.average
        output = parent.output_tokens if average is None else min(parent.output_tokens, average)
        output = output if parent.sequences else 0
        request.cost = request.prompt_tokens + 2.0 * output
        request.threshold = -inf if request.first else account.counter - 2.0 * output / parent.weight
        account.counter += request.cost / parent.weight
        account.outstanding += request.cost / parent.weight
        account.new = False

    def settle(self, request: Request, prompt: int | None, output: int | None) -> float:
        """Replace the estimate with the true cost, and return the difference."""
        parent, account = request.parent, self.accounts[request.parent.tenant]
        estimated = (request.cost - request.prompt_tokens) / 2.0
        cost = (request.prompt_tokens if prompt is None else prompt) + 2.0 * (estimated if output is None else output)
        runs = any(r.running and r.parent.tenant == parent.tenant for r in self.requests.values())
        account.outstanding = account.outstanding - request.cost / parent.weight if runs else 0.0
        account.counter += cost / parent.weight - request.cost / parent.weight
        if output is not None and parent.sequences:
            newest = float(output)
            account.average = newest if account.average is None else account.average + 0.1 * (newest - account.average)
            self.average = newest if self.average is None else self.average + 0.1 * (newest - self.average)
        return cost - request.cost

    def forget(self, tenant: str) -> None:
        """Drop tenants without requests whose counters do not exceed the lift."""
        busy = {request.parent.tenant for request in self.requests.values()}
        if tenant not in busy:
            for name in [name for name in self.accounts if name not in busy]:
                if self.accounts[name].counter <= self.marks[0][1]:
                    del self.accounts[name]
