"""Admission control in front of the engine. State in, decision out: no clock, no asyncio, no I/O."""

import itertools
from collections.abc import Callable
from math import inf

from app.scheduling import snapshot
from app.scheduling.admission_request import AdmissionRequest, Bounds, Refused
from app.scheduling.forecast import Forecast, Rate
from app.scheduling.prefill_backlog import PrefillBacklog
from app.scheduling.queues import BASE, DRAINING, RESIDENT, STAGED, Request, SlotState, Tenant, Version
from app.scheduling.running_sequences import RunningSequences
from app.scheduling.slots import Slots
from app.scheduling.snapshot import QueueSnapshot
from app.scheduling.token_counters import CREDIT_S, TokenCounters


class Admission:
    """Admission control: picks the next sequence to enter the engine. Each request is entered once.

    A request of several sequences competes with one of them at a time. When that one is admitted, the next one joins
    the end of its tenant's queue. Each sequence has a name (:meth:`AdmissionRequest.name`) and is charged separately.
    Each leaves once, whether it ran, failed or gave up. Below, "request" means one such sequence.

    - Sequences in flight fill the window: the places in the engine's batch. The prefill backlog is bounded too, in
      total and per tenant (:mod:`app.scheduling.prefill_backlog`). A request without room blocks those behind it. A
      tenant that fills its part lets others pass.
    - A full window still admits the next request of a tenant with nothing in flight. Such a tenant goes first,
      regardless of counters, if none of its requests was admitted since its backlog began. The engine then preempts
      a sequence of another tenant until a place is free (:mod:`app.scheduling.running_sequences`).
    - A full window also admits a request whose counter is below the preemption threshold of running sequences. This is
      suspended while a version waits for a slot, because preempted sequences keep the slots of their versions.
    - The tenant with the smallest virtual counter goes first (:mod:`app.scheduling.token_counters`). It runs its oldest
      request whose version holds a slot or needs none. If a slot is free and the oldest request needs one, the slot
      goes to the version with the tenant's longest queue (:class:`app.scheduling.fair_order.FairOrder`).
    - Versions with requests in flight never exceed the slots (:mod:`app.scheduling.slots`).
    - A request that exceeds the queue's bounds, or whose estimated wait is too long, is refused on entry and never
      later.

    Times are in seconds of one monotonic clock.

    Args:
        slots: number of distinct versions that may run at once.
        window: number of sequences that may run at once.
        aside: number of sequences that may be preempted at once; by default equal to ``window``.
        max_age_s: seconds for which a staged version may be overtaken by requests for versions that hold slots.
        credit_s: burst credit, see :mod:`app.scheduling.token_counters`.
        step_tokens: see :mod:`app.scheduling.prefill_backlog`.
        bounds: bounds of the queue.

    Raises:
        ValueError: fewer than 1 slot, sequence or token, or a negative age or credit.
    """

    def __init__(
        self,
        *,
        slots: int,
        window: int,
        aside: int | None = None,
        max_age_s: float = 0.5,
        credit_s: float = CREDIT_S,
        step_tokens: float = inf,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    ) -> None:
        least_one = {"slots": slots, "window": window, "step_tokens": step_tokens}
        for name, value in (least_one | {"max_age_s": max_age_s, "credit_s": credit_s}).items():
            if not value >= (least := int(name in least_one)):
                raise ValueError(f"{name} is {value}; it must be {least} or more.")
        self._window, self._bounds = RunningSequences(window, window if aside is None else aside), bounds
        self._requests: dict[str, Request] = {}
        self._numbers = itertools.count()
        self._running, self._now = 0, 0.0
        self._counters = TokenCounters(credit_s)
        self._slots = Slots(slots, max_age_s, self._counters, self._numbers)
        self._prefill_backlog = PrefillBacklog(step_tokens)
        self._forecast = Forecast(self._counters)
        #: Service rates under load: weighted tokens of finished requests, and slot grants.
        self._served, self._slot_grants = Rate(), Rate()

    @property
    def running(self) -> int:
        """Number of running sequences."""
        return self._running

    @property
    def waiting(self) -> int:
        """Number of waiting requests, with their first sequence or a later one."""
        return len(self._requests) - self._running

    @property
    def queued_tokens(self) -> float:
        """Expected weighted tokens of the waiting requests."""
        return self._counters.backlog()

    @property
    def tokens_per_s(self) -> float | None:
        """Service rate under load, in weighted tokens; None if too little was measured."""
        return self._served.per_second

    def resize(self, window: int, now: float) -> tuple[str, ...]:
        """Change the number of sequences that may run at once. Running ones go on; with 0, no further one is admitted.

        Use it without preemption (``aside`` 0).

        Returns:
            Names of the sequences that may run now.
        """
        self._window.resize(window)
        return self._advance_later(now)

    def start_tag(self, name: str) -> float:
        """Return the start tag of a running sequence.

        The engine runs the sequences with the smallest tags if more are in flight than the window has places.
        """
        return self._requests[name].start_tag if name in self._requests else 0.0

    def enter(self, request: AdmissionRequest, now: float) -> tuple[str, ...]:
        """Enqueue a request.

        Returns:
            Names of the sequences that may run now, of this request or of others.

        Raises:
            Refused: the queue is full or the wait too long; nothing has changed.
            ValueError: the id is known, the weight is not above 0, or a number is negative.
        """
        if request.request_id in self._requests:
            raise ValueError(f"Request {request.request_id!r} is in the queue or the engine already.")
        request.validate()
        self._tick(now)
        self._slots.advance_clock(now)
        version_id = BASE if request.version_id is None else request.version_id
        slot_state = self._slots.slot_state(version_id)
        if request.tenant and not self._runs_at_once(request, slot_state):
            self._refuse(request, slot_state, now)
        self._wait_for_turn(request, 0, self._counters.tenant(request), self._slots.version(version_id), now)
        return self._advance(now)

    def prefilled(self, name: str, now: float) -> tuple[str, ...]:
        """Record that the engine has prefilled a sequence's prompt; unknown names are ignored.

        Returns:
            Names of the sequences that may run now.
        """
        if request := self._requests.get(name):
            self._prefill_backlog.remove(request)
        return self._advance_later(now) if request else ()

    def generated(self, name: str, output_tokens: int, now: float) -> tuple[str, ...]:
        """Record the number of tokens that a sequence has generated; unknown and waiting ones are ignored.

        Beyond the expected number its tenant is charged more, so other requests may overtake.

        Returns:
            Names of the sequences that may run now.
        """
        request = self._requests.get(name)
        if request is None or not request.running or not (cost := self._counters.charge_more(request, output_tokens)):
            return ()
        request.version.service += cost
        return self._advance_later(now)

    def leave(
        self, name: str, now: float, *, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> tuple[str, ...]:
        """End a running or waiting sequence; unknown names are ignored.

        True token counts replace the estimates; without them the estimates stay. If a waiting sequence ends, the later
        sequences of its request are not enqueued.

        Returns:
            Names of the sequences that may run now.
        """
        request = self._requests.pop(name, None)
        if request is None:
            return ()
        self._tick(now)
        if request.running:
            self._end(request, now, prompt_tokens, output_tokens)
        else:
            self._counters.queue(request, -1)
        self._slots.leave(request, now)
        self._counters.forget(request.tenant)
        self._slots.advance_clock(now)
        return self._advance(now)

    def staged(self, version_id: int, now: float) -> tuple[str, ...]:
        """Record that a version is staged and can be copied into a slot.

        Returns:
            Names of the sequences that may run now.
        """
        self._tick(now)
        self._slots.stage(version_id, now)
        self._slots.advance_clock(now)
        return self._advance(now)

    def unstaged(self, version_id: int) -> None:
        """Record that a version is no longer staged; it keeps a slot that it holds until its last request ends."""
        self._slots.unstage(version_id)

    def pin(self, version_id: int, now: float) -> tuple[str, ...]:
        """Pin a version: it keeps its slot and every request may join it.

        Returns:
            Names of the sequences that may run now.

        Raises:
            ValueError: no request of the version runs, so it has no slot to keep.
        """
        self._tick(now)
        self._slots.pin(version_id)
        self._slots.advance_clock(now)
        return self._advance(now)

    def unpin(self, version_id: int) -> None:
        """Remove a pin; the request that held the slot still has to leave."""
        self._slots.unpin(version_id)

    def versions_to_stage(self) -> list[int]:
        """Return the versions that wait to be staged, longest wait first."""
        return self._slots.cold()

    def snapshot(self, now: float) -> QueueSnapshot:
        """Return the tenants and versions with a waiting or running request."""
        return snapshot.taken(self._counters.busy(), self._slots.versions(), now)

    def _runs_at_once(self, request: AdmissionRequest, slot_state: SlotState) -> bool:
        if slot_state is not RESIDENT and not (slot_state is STAGED and self._slots.free):
            return False
        tenant, prompt_tokens = self._counters.find(request.tenant), request.prompt_tokens(0)
        if not self._prefill_backlog.has_room(prompt_tokens) or (
            tenant and slot_state is RESIDENT and self._prefill_backlog.fills_part(tenant, prompt_tokens)
        ):
            return False
        if not request.sequences:
            return True
        if not self._fits(request, tenant):
            return False
        # This request fits, so a candidate that still waits needs more room. It goes first only with a smaller counter.
        first = self._pick()
        if tenant and not tenant.queues.keys().isdisjoint(self._slots.runnable):
            return False  # an earlier request of this tenant is held back
        if first is None:
            return True
        if self._window.free <= 0 and self._window.firsts:
            is_new = self._counters.is_new(request.tenant)
            if is_new is not self._counters.is_new(first.tenant.name):
                return is_new
        return (self._counters.lifted(request.tenant), request.tenant) < (first.tenant.counter, first.tenant.name)

    def _refuse(self, request: AdmissionRequest, slot_state: SlotState, now: float) -> None:
        bounds, tenant = self._bounds, self._counters.find(request.tenant)
        own = tenant.waiting if tenant else 0
        if own >= bounds.tenant_requests or self.waiting >= bounds.requests:
            # Retry when a tenth of the queue ahead has been served.
            retry_after_s = max(1.0, self._wait(request, slot_state) / 10)
            if own >= bounds.tenant_requests:
                raise Refused("tenant", found=own, allowed=bounds.tenant_requests, retry_after_s=retry_after_s)
            raise Refused("server", found=self.waiting, allowed=bounds.requests, retry_after_s=retry_after_s)
        if request.deadline is None and self._is_short(bounds.seconds):
            return
        wait_s = self._wait(request, slot_state)
        if request.deadline is not None and now + wait_s > request.deadline:
            allowed = max(0.0, request.deadline - now)
            raise Refused("deadline", found=wait_s, allowed=allowed, retry_after_s=max(1.0, wait_s - allowed))
        if wait_s > bounds.seconds:
            retry_after_s = max(1.0, wait_s - bounds.seconds)
            raise Refused("wait", found=wait_s, allowed=bounds.seconds, retry_after_s=retry_after_s)

    def _is_short(self, seconds: float) -> bool:
        """Return whether the whole backlog would be served within this time, so that no finer estimate is needed."""
        speed, grants_per_s = self._served.per_second, self._slot_grants.per_second
        all_s = self._counters.backlog() / speed if speed else 0.0
        return all_s <= seconds and (self._slots.waits.waiting + 1) / (grants_per_s or inf) <= seconds

    def _wait(self, request: AdmissionRequest, slot_state: SlotState) -> float:
        """Estimate the wait in seconds of a request that cannot run at once; 0 without measurements."""
        tenant = self._counters.find(request.tenant)
        window_s = slot_s = 0.0
        if (speed := self._served.per_second) is not None:
            counter = self._counters.lifted(request.tenant)
            work = self._forecast.work_before(tenant, counter, request.weight)
            window_s = (work + self._served.mean) / speed
        needs_slot = slot_state is DRAINING or (slot_state is STAGED and not self._slots.free)
        if needs_slot and (speed := self._slot_grants.per_second) is not None:
            grants = self._slots.waits.waiting
            if self._slots.waits.passable():
                # In fair order each tenant gets at most as many slot grants as this tenant needs.
                grants = min(
                    grants, self._counters.staged * (1 + (len(tenant.queues.get(STAGED, ())) if tenant else 0))
                )
            slot_s = (grants + 1) / speed
        return max(window_s, slot_s)

    def _tick(self, now: float) -> None:
        self._now = now
        if now >= self._counters.due:
            self._counters.note_floor(now)

    def _advance_later(self, now: float) -> tuple[str, ...]:
        """Admit requests that fit, after an event other than an arrival or a departure."""
        if not self.waiting:
            return ()
        self._tick(now)
        self._slots.advance_clock(now)
        return self._advance(now)

    def _advance(self, now: float) -> tuple[str, ...]:
        """Admit requests in order while they fit."""
        admitted: list[str] = []
        reopened = True
        while reopened:
            before = len(admitted)
            while (request := self._next()) is not None:
                self._admit(request, now)
                admitted.append(request.name)
            reopened = len(admitted) > before and self._slots.balance(now)
        self._forecast.changes_left -= 1
        if self._window.free > 0 and not self._counters.contended:
            self._served.pause()
        if not self._slots.waits.waiting:
            self._slot_grants.pause()
        return tuple(admitted)

    def _next(self) -> Request | None:
        if self._slots.weightless and (request := self._slots.next_weightless()) is not None:
            return request
        request = self._pick()
        if request is None or not self._prefill_backlog.has_room(request.prompt_tokens):
            return None
        return request if self._fits(request.parent, request.tenant) else None

    def _pick(self) -> Request | None:
        """Pick the next request; a full window prefers a new tenant while further firsts are allowed."""
        if self._window.free <= 0:
            if not self._window.firsts:
                if self._room(self._slots.least_counter) <= 0:
                    return None
            elif (request := self._slots.pick_new()) is not None:
                return request
        return self._slots.pick(self._fills_part)

    def _fits(self, request: AdmissionRequest, tenant: Tenant | None) -> bool:
        if self._window.free > 0 or self._may_be_first(tenant):
            return True
        return self._room(lambda: self._counters.lifted(request.tenant)) > 0

    def _may_be_first(self, tenant: Tenant | None) -> bool:
        return self._window.firsts > 0 and not (tenant and tenant.running)

    def _room(self, counter: Callable[[], float]) -> int:
        """Return the number of places open to a tenant with this counter, which is computed only if needed."""
        if self._slots.waits.waiting and not self._slots.free:
            return self._window.free
        return self._window.room(counter())

    def _fills_part(self, request: Request) -> bool:
        return self._prefill_backlog.fills_part(request.tenant, request.prompt_tokens)

    def _wait_for_turn(
        self, parent: AdmissionRequest, sequence: int, tenant: Tenant, version: Version, now: float
    ) -> None:
        request = Request(parent, sequence, next(self._numbers), now, tenant, version)
        self._requests[request.name] = request
        self._counters.queue(request)
        self._slots.join(request, now)

    def _admit(self, request: Request, now: float) -> None:
        parent, tenant = request.parent, request.tenant
        if request.version.slot_state is STAGED:
            self._slot_grants.add(1.0, now)
        # Enqueue the next sequence before admitting this one, because a version without waiting requests may drain.
        if request.sequence + 1 < parent.sequences:
            self._wait_for_turn(parent, request.sequence + 1, tenant, request.version, now)
        self._slots.admit(request, now)
        self._counters.queue(request, -1)
        request.first = parent.sequences > 0 and self._may_be_first(tenant)
        self._counters.charge(request)
        if parent.sequences:
            self._window.take(request)
        request.version.service += request.cost
        self._running += 1
        self._prefill_backlog.add(request)

    def _end(self, request: Request, now: float, prompt_tokens: int | None, output_tokens: int | None) -> None:
        cost = self._counters.settle(request, prompt_tokens, output_tokens)
        request.version.service += cost - request.cost
        self._running -= 1
        self._prefill_backlog.remove(request)
        if request.parent.sequences:
            self._window.give(request)
        self._served.add(cost, now)
