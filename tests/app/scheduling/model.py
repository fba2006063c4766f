"""The scheduler's rules written down plainly: every decision looks at everything. Slow."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil, floor, inf

from app.scheduling.ticket import Ticket
from tests.app.scheduling.records import Account, Request, Version


@dataclass(eq=False)
class Model:
    """See :class:`app.scheduling.admission.Admission` for the rules."""

    slots: int
    window: int
    max_age_s: float
    requests: dict[str, Request] = field(default_factory=dict)
    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    versions: defaultdict[int, Version] = field(default_factory=lambda: defaultdict(Version))
    holders: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    staged_ids: set[int] = field(default_factory=set)
    claimants: set[str] = field(default_factory=set)
    numbers: int = 0
    now: float = 0.0
    floor: float = 0.0
    last: Account | None = None
    average: float | None = None
    passed: float = 0.0
    drain_s: float = inf

    # What is asked from outside.

    def enter(self, ticket: Ticket, now: float) -> list[str]:
        self.pass_time(now)
        version_id = ticket.version_id
        if version_id is not None and not self.waiting(version_id):
            if version_id not in self.holders:
                self.versions[version_id] = Version()
            self.versions[version_id].ahead = len(self.queue())
        self.numbers += 1
        self.requests[ticket.request_id] = Request(ticket, self.numbers, now)
        return self.advance(now)

    def leave(self, request_id: str, now: float, prompt: int | None = None, output: int | None = None) -> list[str]:
        request = self.requests.pop(request_id, None)
        if request is None:
            return []
        version_id = request.ticket.version_id
        if request.running:
            self.settle(request, prompt, output)
            if version_id is not None and not self.running(version_id):
                kept = 0.0 if self.drain_s == inf else 0.95 * self.drain_s
                self.drain_s = max(now - request.started, kept) or inf
        elif version_id is not None:
            # If its oldest request leaves, the version's wait begins with the next one.
            oldest, closed = self.waiting(version_id), self.versions[version_id].closed
            if not oldest or max(request.number, closed) < max(oldest[0].number, closed):
                self.versions[version_id].limit = None
        self.claim()
        if version_id in self.holders - self.pinned and not self.running(version_id):
            self.release(version_id, now)
        self.forget(request.ticket.tenant)
        return self.advance(now)

    def staged(self, version_id: int, now: float) -> list[str]:
        if version_id in self.waiting_versions() and version_id not in self.staged_ids:
            before = [other for other in self.queue() if other in self.staged_ids | self.holders]
            self.versions[version_id].ahead = min(self.versions[version_id].ahead, len(before))
        self.staged_ids.add(version_id)
        return self.advance(now)

    def unstaged(self, version_id: int) -> None:
        self.staged_ids.discard(version_id)
        self.versions[version_id].limit = None
        self.claim()

    def pin(self, version_id: int, now: float) -> list[str]:
        self.pinned.add(version_id)
        self.reopen(version_id)
        return self.advance(now)

    def unpin(self, version_id: int) -> None:
        self.pinned.discard(version_id)
        if version_id in self.holders and not self.running(version_id):
            self.release(version_id, self.now)

    # What there is.

    def waiting(self, version_id: int | None) -> list[Request]:
        """The oldest first."""
        return [r for r in self.requests.values() if not r.running and r.ticket.version_id == version_id]

    def running(self, version_id: int) -> list[Request]:
        return [r for r in self.requests.values() if r.running and r.ticket.version_id == version_id]

    def waiting_versions(self) -> dict[int, Request]:
        """Versions without a slot and their oldest requests."""
        oldest: dict[int, Request] = {}
        for request in self.requests.values():
            version_id = request.ticket.version_id
            if not request.running and version_id is not None and version_id not in self.holders:
                oldest.setdefault(version_id, request)
        return oldest

    def queue(self) -> list[int]:
        """Versions that wait for a slot or to be staged, those included that drain."""
        return [*self.waiting_versions(), *(version_id for version_id in self.draining() if self.waiting(version_id))]

    def in_flight(self) -> int:
        return sum(request.ticket.sequences for request in self.requests.values() if request.running)

    def free(self) -> int:
        return self.slots - len(self.holders)

    def draining(self) -> list[int]:
        return [version_id for version_id in self.holders if self.versions[version_id].drains_since is not None]

    def place(self, request: Request) -> str:
        version_id = request.ticket.version_id
        if version_id is None:
            return "open"
        if version_id in self.holders:
            return "open" if self.versions[version_id].drains_since is None else "draining"
        return "ready" if version_id in self.staged_ids else "cold"

    def can_go(self, request: Request) -> bool:
        return not request.running and (
            self.place(request) == "open" or (self.place(request) == "ready" and self.free() > 0)
        )

    def since(self, version_id: int) -> float:
        return max(self.waiting(version_id)[0].arrived, self.versions[version_id].closed_at)

    def turn_number(self, version_id: int) -> int:
        return max(self.waiting(version_id)[0].number, self.versions[version_id].closed)

    def old(self) -> list[int]:
        """Those without a slot that have waited too long for one, the oldest first."""
        return sorted((v for v in self.waiting_versions() if self.versions[v].limit is not None), key=self.turn_number)

    def leaving(self) -> list[int]:
        """Those that have waited too long and still drain."""
        return [version_id for version_id in self.draining() if self.versions[version_id].limit is not None]

    # Decisions.

    def advance(self, now: float) -> list[str]:
        self.pass_time(now)
        admitted: list[str] = []
        while True:
            while (request := self.pick()) is not None:
                self.admit(request, now)
                admitted.append(request.ticket.request_id)
            if not self.balance(now):
                return admitted

    def pass_time(self, now: float) -> None:
        self.now = now
        self.claim()
        self.ripen(now)
        self.balance(now)

    def ripen(self, now: float) -> None:
        for version_id in self.queue():
            version = self.versions[version_id]
            if version_id not in self.staged_ids | self.holders:
                version.limit = None
            elif version.limit is None and now > self.since(version_id) + self.max_age_s:
                rounds = ceil((version.ahead + 1) / self.slots)
                version.limit = self.passed + floor((rounds - 1) * self.max_age_s / self.drain_s)

    def pick(self) -> Request | None:
        able = [request for request in self.requests.values() if self.can_go(request)]
        if weightless := [request for request in able if not request.ticket.sequences]:
            return weightless[0]
        room = self.window - self.in_flight()
        if not able or room <= 0:
            return None
        tenant = min((self.accounts[r.ticket.tenant].counter, r.ticket.tenant) for r in able)[1]
        chosen = next(request for request in able if request.ticket.tenant == tenant)
        if self.free() and (old := self.old()):
            oldest = self.waiting(old[0])[0]
            passes = self.free() == 1 and self.place(chosen) == "ready"
            limits = [self.versions[v].limit or 0.0 for v in old + self.leaving()]
            if oldest.ticket.tenant == tenant or (passes and self.passed + self.turn() > min(limits)):
                chosen = oldest
        return chosen if chosen.ticket.sequences <= room or not self.in_flight() else None

    def turn(self) -> float:
        return 1 / max(1, min(len(self.old()), self.slots))

    def admit(self, request: Request, now: float) -> None:
        ticket, account = request.ticket, self.accounts[request.ticket.tenant]
        if self.place(request) == "ready":
            assert ticket.version_id is not None
            if self.free() == 1 and self.old() and self.old()[0] != ticket.version_id:
                self.passed += self.turn()
            self.holders.add(ticket.version_id)
            self.versions[ticket.version_id] = Version(
                closed_at=self.versions[ticket.version_id].closed_at, closed=self.versions[ticket.version_id].closed
            )
        average = self.average if account.average is None else account.average
        output = ticket.output_tokens if average is None else min(ticket.output_tokens, average * ticket.sequences)
        request.running, request.started, request.cost = True, now, ticket.prompt_tokens + 2.0 * output
        self.claim()
        account.counter += request.cost / ticket.weight
        account.outstanding += request.cost / ticket.weight
        if ticket.version_id is not None:
            self.versions[ticket.version_id].service += request.cost

    def settle(self, request: Request, prompt: int | None, output: int | None) -> None:
        ticket, account = request.ticket, self.accounts[request.ticket.tenant]
        estimated = (request.cost - ticket.prompt_tokens) / 2.0
        cost = (ticket.prompt_tokens if prompt is None else prompt) + 2.0 * (estimated if output is None else output)
        runs = any(r.running and r.ticket.tenant == ticket.tenant for r in self.requests.values())
        account.outstanding = account.outstanding - request.cost / ticket.weight if runs else 0.0
        account.counter += cost / ticket.weight - request.cost / ticket.weight
        if ticket.version_id is not None:
            self.versions[ticket.version_id].service += cost - request.cost
        if output is not None and ticket.sequences:
            newest = output / ticket.sequences
            account.average = newest if account.average is None else account.average + 0.1 * (newest - account.average)
            self.average = newest if self.average is None else self.average + 0.1 * (newest - self.average)

    def release(self, version_id: int, now: float) -> None:
        version = self.versions[version_id]
        self.holders.discard(version_id)
        if version.drains_since is None:
            ahead = [other for other in self.queue() if other != version_id]
            self.numbers += 1
            self.versions[version_id] = Version(closed_at=now, closed=self.numbers, ahead=len(ahead))
        else:
            version.drains_since = None
        self.claim()

    def balance(self, now: float) -> bool:
        reopened = False
        while len(self.draining()) > max(0, need := self.needs() - self.free()):
            self.reopen(min(self.draining(), key=self.by_service))
            reopened = True
        while len(self.draining()) < need and (able := self.holders - self.pinned - set(self.draining())):
            version, ahead = self.versions[max(able, key=self.by_service)], len(self.queue())
            self.numbers += 1
            version.drains_since = version.closed_at = now
            version.closed, version.ahead = self.numbers, ahead
        return reopened

    def needs(self) -> int:
        return len(self.old()) + len(self.leaving()) if self.old() else 0

    def reopen(self, version_id: int) -> None:
        self.versions[version_id].drains_since = self.versions[version_id].limit = None

    def by_service(self, version_id: int) -> tuple[float, int]:
        return self.versions[version_id].service, version_id

    # Counters.

    def lowest(self) -> float:
        if self.claimants:
            first = self.accounts[min((self.accounts[name].counter, name) for name in self.claimants)[1]]
        elif self.last is not None:
            first = self.last
        else:
            return self.floor
        return max(self.floor, first.counter - first.outstanding)

    def claim(self) -> None:
        """Lift those that begin to compete; call it whenever that may have changed."""
        now = {
            request.ticket.tenant
            for request in self.requests.values()
            if not request.running and request.ticket.sequences and self.place(request) != "cold"
        }
        for name in sorted(self.claimants - now):
            self.claimants.discard(name)
            self.last = self.accounts[name]
        for name in sorted(now - self.claimants):
            self.floor = self.lowest()
            self.accounts[name].counter = max(self.accounts[name].counter, self.floor)
            self.claimants.add(name)

    def forget(self, tenant: str) -> None:
        """Nothing is kept of tenants that a lift would reach; all their requests have ended."""
        busy = {request.ticket.tenant for request in self.requests.values()}
        if tenant not in busy:
            for name in [name for name in self.accounts if name not in busy]:
                if self.accounts[name].counter <= self.lowest():
                    del self.accounts[name]
