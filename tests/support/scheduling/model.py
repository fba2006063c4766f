"""Reference model of the scheduler: plain rules that scan the whole state at each decision. Slow."""

from collections import Counter
from dataclasses import dataclass
from math import ceil, floor

from app.scheduling import prefill_backlog
from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.queues import COLD, STAGED
from tests.support.scheduling.records import Request, Version
from tests.support.scheduling.slots import Slots


@dataclass(eq=False, kw_only=True)
class Model(Slots):
    """Reference model; see :class:`app.scheduling.admission.Admission` for the rules."""

    passed: float = 0.0

    # Public interface.

    def enter(self, request: AdmissionRequest, now: float) -> list[str]:
        self.tick(now)
        self.advance_clock(now)
        version_id = request.version_id
        if version_id is not None and not self.waiting(version_id):
            if version_id not in self.slot_holders:
                self.versions[version_id] = Version()
            self.versions[version_id].ahead = len(self.queue())
        self.wait(request, 0, now)
        self.note_waits()
        return self.advance(now)

    def wait(self, parent: AdmissionRequest, sequence: int, now: float) -> None:
        self.numbers += 1
        request = Request(parent, sequence, self.numbers, now)
        self.requests[request.name] = request

    def leave(self, name: str, now: float, prompt: int | None = None, output: int | None = None) -> list[str]:
        if name not in self.requests:
            return []
        self.tick(now)
        request = self.requests.pop(name)
        version_id = request.parent.version_id
        if request.running:
            more = self.settle(request, prompt, output)
            if version_id is not None:
                self.versions[version_id].service += more
            if version_id is not None and not self.running(version_id):
                self.visits.append(now - request.started)
        elif version_id is not None:
            # If the oldest request leaves, the version's wait begins with the next one.
            oldest, closed = self.waiting(version_id), self.versions[version_id].closed
            if not oldest or max(request.number, closed) < max(oldest[0].number, closed):
                self.versions[version_id].limit = None
            self.versions[version_id].filling &= bool(oldest)
        self.claim()
        if version_id in self.slot_holders - self.pinned and not self.running(version_id):
            self.release(version_id, now)
        self.note_waits()
        self.forget(request.parent.tenant)
        return self.advance(now)

    def prefilled(self, name: str, now: float) -> list[str]:
        self.requests[name].prefilled = True
        return self.advance_later(now)

    def generated(self, name: str, output: int, now: float) -> list[str]:
        request = self.requests[name]
        parent, account = request.parent, self.accounts[request.parent.tenant]
        before = request.cost - request.prompt_tokens
        if not request.running or 2.0 * output <= before:
            return []
        more = 2.0 * max(output, min(2 * output, parent.output_tokens)) - before
        request.cost += more
        account.counter += more / parent.weight
        account.outstanding += more / parent.weight
        if parent.version_id is not None:
            self.versions[parent.version_id].service += more
        return self.advance_later(now)

    def advance_later(self, now: float) -> list[str]:
        if all(request.running for request in self.requests.values()):
            return []
        self.tick(now)
        return self.advance(now)

    def staged(self, version_id: int, now: float) -> list[str]:
        self.tick(now)
        if version_id in self.waiting_versions() and version_id not in self.staged_ids:
            before = [other for other in self.queue() if other in self.staged_ids | self.slot_holders]
            self.versions[version_id].ahead = min(self.versions[version_id].ahead, len(before))
        self.staged_ids.add(version_id)
        self.note_waits()
        return self.advance(now)

    def unstaged(self, version_id: int) -> None:
        self.staged_ids.discard(version_id)
        self.versions[version_id].limit = None
        self.note_waits()
        self.claim()

    def pin(self, version_id: int, now: float) -> list[str]:
        self.tick(now)
        self.pinned.add(version_id)
        self.versions[version_id].filling = False
        self.reopen(version_id)
        return self.advance(now)

    def unpin(self, version_id: int) -> None:
        self.pinned.discard(version_id)
        if version_id in self.slot_holders and not self.running(version_id):
            self.release(version_id, self.now)
        self.note_waits()

    # Decisions.

    def advance(self, now: float) -> list[str]:
        self.advance_clock(now)
        admitted: list[str] = []
        while True:
            while (request := self.pick()) is not None:
                self.admit(request, now)
                admitted.append(request.name)
            if not self.balance(now):
                return admitted

    def advance_clock(self, now: float) -> None:
        self.looked = now
        self.claim()
        self.ripen(now)
        self.balance(now)

    def ripen(self, now: float) -> None:
        for version_id in self.queue():
            version = self.versions[version_id]
            if version_id not in self.staged_ids | self.slot_holders:
                version.limit = None
            elif version.limit is None and now > self.since(version_id) + self.max_age_s:
                rounds = ceil((version.ahead + 1) / self.slots)
                version.limit = self.passed + floor((rounds - 1) * self.max_age_s / self.drain_s())

    def pick(self) -> Request | None:
        able = [request for request in self.requests.values() if self.can_go(request)]
        if weightless := [request for request in able if not request.parent.sequences]:
            return weightless[0]
        if self.window <= self.in_flight() and self.firsts() > 0:
            able = [request for request in able if self.is_new(request.parent.tenant)] or able
        while able:
            chosen, tenant = self.choose(able)
            if self.slot_state(chosen) == STAGED or not self.fills_part(chosen):
                fits = self.may_be_first(chosen.parent.tenant) or self.room(chosen) > 0
                return chosen if fits and self.is_readable(chosen) else None
            able = [request for request in able if request.parent.tenant != tenant]
        return None

    def is_readable(self, request: Request) -> bool:
        """Return whether its prompt fits into the prefill backlog."""
        return (
            self.prefill_backlog() + self.counted(request.prompt_tokens)
            <= prefill_backlog.PART * prefill_backlog.STEPS * self.step_tokens
        )

    def room(self, request: Request) -> int:
        """Return the number of places that are free or can be freed by preemption.

        Preemption is suspended while a version waits for a slot.
        """
        parent, free = request.parent, self.window - self.in_flight()
        in_want = not self.free() and any(self.slot_state(self.waiting(v)[0]) != COLD for v in self.queue())
        if free > 0 or in_want:
            return free
        return min(self.window - self.before(self.accounts[parent.tenant].counter), self.window + free)

    def choose(self, able: list[Request]) -> tuple[Request, str]:
        """Return the next request, and the tenant whose turn it is."""
        tenant = min((self.accounts[r.parent.tenant].counter, r.parent.tenant) for r in able)[1]
        own = [request for request in able if request.parent.tenant == tenant]
        chosen = own[0]
        if self.slot_state(chosen) == STAGED:
            ready = [request for request in own if self.slot_state(request) == STAGED]
            waiting_by_version = Counter(request.parent.version_id for request in ready)
            chosen = max(ready, key=lambda request: waiting_by_version[request.parent.version_id].bit_length())
        if self.free() and (old := self.old()):
            oldest = self.waiting(old[0])[0]
            needs_slot, same = self.slot_state(chosen) == STAGED, oldest.parent.tenant == tenant
            if (same and not needs_slot) or (not self.passable() and (same or (needs_slot and self.free() == 1))):
                chosen = oldest
        return chosen, tenant

    def passable(self) -> bool:
        limits = [self.versions[version_id].limit or 0.0 for version_id in self.old() + self.leaving()]
        return (not limits or self.passed + self.turn() <= min(limits)) and self.can_bear(self.drain_s())

    def turn(self) -> float:
        return 1 / max(1, min(len(self.old()), self.slots))

    def admit(self, request: Request, now: float) -> None:
        parent = request.parent
        if request.sequence + 1 < parent.sequences:
            self.wait(parent, request.sequence + 1, now)
        request.first = parent.sequences > 0 and self.may_be_first(parent.tenant)
        if self.slot_state(request) == STAGED:
            assert parent.version_id is not None
            if self.free() == 1 and self.old() and self.old()[0] != parent.version_id:
                self.passed += self.turn()
            self.slot_holders.add(parent.version_id)
            before = self.versions[parent.version_id]
            self.versions[parent.version_id] = Version(closed_at=before.closed_at, closed=before.closed, filling=True)
            self.note_waits()
        request.start_tag = self.accounts[parent.tenant].counter
        request.running, request.started = True, now
        self.claim()
        self.charge(request)
        if parent.version_id is not None:
            self.versions[parent.version_id].service += request.cost
            self.versions[parent.version_id].filling &= bool(self.waiting(parent.version_id))

    def release(self, version_id: int, now: float) -> None:
        version = self.versions[version_id]
        self.slot_holders.discard(version_id)
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
        if len(self.draining()) < need and self.can_bear(self.max_age_s):
            return reopened
        while len(self.draining()) < need and (able := self.able_to_drain() or self.end_filling()):
            version, ahead = self.versions[max(able, key=self.by_service)], len(self.queue())
            self.numbers += 1
            version.drains_since = version.closed_at = now
            version.closed, version.ahead = self.numbers, ahead
            self.note_waits()
        return reopened

    def able_to_drain(self) -> set[int]:
        open_ones = self.slot_holders - self.pinned - set(self.draining())
        return {version_id for version_id in open_ones if not self.versions[version_id].filling}

    def end_filling(self) -> set[int]:
        """Let filling versions drain too, but only once an aged version has no slack left.

        Returns:
            Versions that may drain.
        """
        if self.can_bear():
            return set()
        for version_id in self.slot_holders:
            self.versions[version_id].filling = False
        return self.able_to_drain()

    def needs(self) -> int:
        return len(self.old()) + len(self.leaving()) if self.old() else 0

    def reopen(self, version_id: int) -> None:
        self.versions[version_id].drains_since = self.versions[version_id].limit = None
        self.note_waits()

    def by_service(self, version_id: int) -> tuple[float, int]:
        return self.versions[version_id].service, version_id

    def claim(self) -> None:
        """Lift the tenants that begin to compete; call it after every change that may affect this."""
        waiting = [r for r in self.requests.values() if not r.running and r.parent.sequences]
        self.lift({request.parent.tenant for request in waiting if self.slot_state(request) != COLD})
