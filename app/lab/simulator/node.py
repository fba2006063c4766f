"""Simulated engine node: the unmodified scheduler and residency plans over a simulated engine."""

import heapq
import itertools
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from adapters.residency import Residency
from app.lab.simulator.engine import Engine
from app.lab.simulator.fairness import Fairness
from app.lab.simulator.job import Job
from app.lab.simulator.loader import BrokenPromise, Loader
from app.lab.simulator.machine import Machine, Scheduler
from app.lab.simulator.watch import Watch
from app.lab.simulator.workload import BASE, Arrival
from app.scheduling.admission_request import AdmissionRequest, Refused

#: Sampling interval of timed decisions.
_TIMED = 16


class Population(Protocol):
    """Properties of all requests of a workload.

    Attributes:
        tenants: number of tenants with the machine's weights. Those with a higher index have weight 1.
        lengths: half-open range of the lengths of prompts and answers, in tokens.
        ranks: ranks of the adapters, round robin.
    """

    @property
    def tenants(self) -> int: ...

    @property
    def lengths(self) -> tuple[int, int]: ...

    @property
    def ranks(self) -> tuple[int, ...]: ...


class Node:
    """One simulated engine with its queue and its adapters.

    Args:
        answered: callback for each request after its last token.
        ended: callback for each accepted request after its end, answered or not.

    Attributes:
        in_flight: number of admitted requests.
        refused: number of refused requests by scope.
        served, cancelled: numbers of requests.
        output_tokens: tokens of the served requests.
        copies: number of copies into slots.
        decision_s: sampled CPU seconds of scheduler calls.
        most_waiting: maximum queue length.
    """

    def __init__(
        self,
        population: Population,
        machine: Machine,
        scheduler: Scheduler,
        *,
        answered: Callable[[Job], None] = lambda _: None,
        ended: Callable[[Job], None] = lambda _: None,
    ) -> None:
        self._population, self.machine, self.scheduler = population, machine, scheduler
        self._answered, self._ended = answered, ended
        self.host, self.slots = Residency(machine.host_bytes), Residency(machine.slots)
        self.engine = Engine(machine.costs, finished=self._finished, copied=self._copied)
        self._loader = Loader(
            self.host,
            self.slots,
            machine.costs,
            parallel=machine.loads,
            size=self._size,
            to_stage=scheduler.versions_to_stage,
            unstaged=self._unstaged,
            later=self._at,
            staged=self._staged,
        )
        self.watch, self.fairness = Watch(machine.slots, machine.max_age_s), Fairness(self._weight)
        self.refused: Counter[str] = Counter()
        self.served = self.cancelled = self.output_tokens = self.copies = self.most_waiting = self.in_flight = 0
        self.decision_s = array("d")
        self._jobs: dict[str, Job] = {}
        #: Arrival times of waiting requests by version, oldest first.
        self._waiting: dict[int, dict[str, float]] = {}
        #: Admitted requests whose adapter is being copied into its slot.
        self._held: dict[int, list[Job]] = {}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count(1)
        self._calls = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self.scheduler.waiting

    @property
    def waiting_versions(self) -> Collection[int]:
        """Versions with a waiting request."""
        return self._waiting.keys()

    @property
    def on_disk(self) -> Iterable[int]:
        """Versions on the disk."""
        return self._loader.on_disk

    @property
    def fetched(self) -> int:
        """Number of versions that were fetched from the blob store."""
        return sum(1 for _ in self.on_disk)

    def arrive(self, arrival: Arrival) -> Job | None:
        """Enqueue a request that arrives now; None if the queue refuses it."""
        job = Job(str(next(self._numbers)), arrival)
        try:
            admitted = self._decide(self.scheduler.enter, self._admission_request(job), arrival.at)
        except Refused as refusal:
            self.refused[refusal.scope] += 1
            return None
        self._jobs[job.request_id] = job
        self._admit(admitted, arrival.at)
        if job.waits:
            self._queue(job, arrival.at)
            self.most_waiting = max(self.most_waiting, self.scheduler.waiting)
        if arrival.patience_s < math.inf:
            self._at(arrival.at + arrival.patience_s, lambda now: self._cancel(job, now))
        return job

    def advance(self, until: float) -> None:
        """Process everything up to this time; the step in progress may end later.

        Raises:
            BrokenPromise: the scheduler admitted a request that cannot run.
        """
        self._fire(until)
        while self.engine.now < until:
            self._step(until)

    def drain(self) -> None:
        """Process everything up to the last answer.

        Raises:
            BrokenPromise: the scheduler admitted a request that cannot run, or left requests waiting forever.
        """
        self._settle()
        while self._timers or not self.engine.idle:
            self._step(math.inf)
            self._settle()
        if self._jobs:
            raise BrokenPromise(f"{len(self._jobs)} requests wait, and nothing will admit them.")

    def _step(self, until: float) -> None:
        self._settle()
        due = min(until, self._timers[0][0]) if self._timers else until
        if self.engine.idle:
            self.engine.now = max(self.engine.now, due)
        else:
            self.engine.advance(due)
        self._fire(until)

    def _fire(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= min(until, self.engine.now):
            when, _, call = heapq.heappop(self._timers)
            call(when)

    def _settle(self) -> None:
        self.engine.settle()
        self.fairness.passed(self.engine.now)

    def _at(self, when: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def _admission_request(self, job: Job) -> AdmissionRequest:
        arrival = job.arrival
        return AdmissionRequest(
            request_id=job.request_id,
            tenant=str(arrival.tenant),
            weight=self._weight(arrival.tenant),
            version_id=job.version_id,
            prompts=(arrival.prompt_tokens,),
            # Clients state the maximum that they would accept.
            output_tokens=self._population.lengths[1] - 1,
            deadline=arrival.at + arrival.deadline_s if arrival.deadline_s < math.inf else None,
        )

    def _queue(self, job: Job, now: float) -> None:
        version_id = job.version_id
        runnable = version_id is None or self._loader.available(version_id)
        if runnable:
            self.fairness.waits(job.arrival.tenant)
        job.queued = "runnable" if runnable else "unstaged"
        if version_id is None:
            return
        waiting = self._waiting.setdefault(version_id, {})
        waiting[job.request_id] = job.arrival.at
        if len(waiting) == 1:
            self.watch.waits(version_id, now, available=runnable)
            self._loader.keep(version_id, now)

    def _dequeue(self, job: Job, now: float) -> None:
        if job.queued is None:
            return
        if job.queued == "runnable":
            self.fairness.waits_no_more(job.arrival.tenant)
        job.queued, version_id = None, job.version_id
        if version_id is None:
            return
        del self._waiting[version_id][job.request_id]
        if job.waits:
            self.watch.gave_up(version_id, self._oldest(version_id))
        if not self._waiting[version_id]:
            del self._waiting[version_id]
            self._loader.let_go(version_id, now)

    def _oldest(self, version_id: int) -> float | None:
        return next(iter(self._waiting.get(version_id, {}).values()), None)

    def _admit(self, request_ids: Iterable[str], now: float) -> None:
        for request_id in request_ids:
            job = self._jobs[request_id]
            job.admitted_at = now
            if job.version_id is None:
                self.engine.join(job)
            else:
                self._enter_slot(job, job.version_id, now)
            self._dequeue(job, now)
            self.in_flight += 1
        self.watch.window(now, full=self.in_flight >= self.machine.window)

    def _enter_slot(self, job: Job, version_id: int, now: float) -> None:
        self.watch.joined(version_id, now)
        seconds = self._loader.enter_slot(version_id, now)
        if seconds is not None:
            self.copies += 1
            self._held[version_id] = [job]
            self.engine.copy(version_id, seconds)
        elif version_id in self._held:
            self._held[version_id].append(job)
        else:
            self.engine.join(job)

    def _copied(self, version_id: int) -> None:
        self._loader.copied(version_id, self.engine.now)
        for job in self._held.pop(version_id):
            self.engine.join(job)

    def _finished(self, job: Job) -> None:
        arrival = job.arrival
        self.served += 1
        self.output_tokens += arrival.output_tokens
        self._answered(job)
        self.fairness.served(arrival.tenant, arrival.prompt_tokens, arrival.output_tokens)
        self._end(job, self.engine.now, arrival.output_tokens)

    def _cancel(self, job: Job, now: float) -> None:
        if job.gone:
            return
        self.cancelled += 1
        job.gone = True
        generated = 0
        if job.last_step:
            generated = job.arrival.output_tokens - (job.last_step - self.engine.steps)
        if job.waits:
            pass
        elif job in (held := self._held.get(job.version_id or BASE, [])):
            held.remove(job)
        else:
            self.engine.abort(job)
        self._end(job, now, generated)

    def _end(self, job: Job, now: float, output_tokens: int) -> None:
        job.gone = True
        del self._jobs[job.request_id]
        self._ended(job)
        self._dequeue(job, now)
        if job.version_id is not None and not job.waits:
            self.watch.left(job.version_id, now, self._oldest(job.version_id))
            self._loader.leave_slot(job.version_id, now)
            if self._held.get(job.version_id) == []:
                del self._held[job.version_id]
                self.engine.stop_copy(job.version_id)
                self._loader.abandon(job.version_id, now)
        self.in_flight -= not job.waits
        prompt_tokens = 0 if job.waits else job.arrival.prompt_tokens
        leave = self.scheduler.leave
        ended = self._decide(leave, job.request_id, now, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self._admit(ended, now)

    def _staged(self, version_id: int, now: float) -> None:
        self.watch.available(version_id, now)
        self._admit(self.scheduler.staged(version_id, now), now)

    def _unstaged(self, version_id: int) -> None:
        self.scheduler.unstaged(version_id)
        self.watch.unavailable(version_id)

    def _decide(self, call: Callable[..., tuple[str, ...]], *arguments: Any, **named: int) -> tuple[str, ...]:
        self._calls += 1
        if self._calls % _TIMED:
            return call(*arguments, **named)
        begun = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            self.decision_s.append(time.thread_time() - begun)

    def _size(self, version_id: int) -> int:
        ranks = self._population.ranks
        return ranks[version_id % len(ranks)] * self.machine.bytes_per_rank

    def _weight(self, tenant: int) -> float:
        weights = self.machine.weights
        return weights[tenant % len(weights)] if tenant < self._population.tenants else 1.0
