"""Simulation of the unmodified scheduler and residency plans over a simulated engine."""

import heapq
import itertools
import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adapters.residency import Residency
from app.lab.simulator.engine import Engine
from app.lab.simulator.fairness import Fairness
from app.lab.simulator.job import Job
from app.lab.simulator.loader import BrokenPromise, Loader
from app.lab.simulator.machine import Machine, Scheduler
from app.lab.simulator.watch import Watch
from app.lab.simulator.workload import BASE, Arrival, Workload
from app.scheduling.admission_request import AdmissionRequest, Refused

#: Sampling interval of timed decisions.
_TIMED = 16

#: Number of ordinary tenants in the class ``largest``.
_LARGEST = 10

#: Requests between two calls of ``progress``.
_REPORTED = 2_000


class Simulation:
    """Run from the first arrival to the last answer.

    Attributes:
        ttft_s: seconds from arrival to first token of each served request, by class of tenant.
        refused: number of refused requests by scope.
        served, cancelled: numbers of requests.
        output_tokens: tokens of the served requests.
        decision_s: sampled CPU seconds of scheduler calls.
        most_waiting: maximum queue length.
    """

    def __init__(self, workload: Workload, machine: Machine, scheduler: Scheduler) -> None:
        self.workload, self.machine, self._scheduler = workload, machine, scheduler
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
        self._classes = _classes(workload)
        self.ttft_s: dict[str, array[float]] = {name: array("d") for name in sorted(set(self._classes))}
        self.refused: Counter[str] = Counter()
        self.served = self.cancelled = self.output_tokens = self.most_waiting = 0
        self.decision_s = array("d")
        self._jobs: dict[str, Job] = {}
        #: Arrival times of waiting requests by version, oldest first.
        self._waiting: dict[int, dict[str, float]] = {}
        #: Admitted requests whose adapter is being copied into its slot.
        self._held: dict[int, list[Job]] = {}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count(1)
        self._calls = self._in_flight = 0

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Process all requests.

        Args:
            progress: occasional callback with the number of requests that have arrived.

        Raises:
            BrokenPromise: the scheduler admitted a request that cannot run, or left requests waiting forever.
        """
        arrivals, arrived = self.workload.arrivals(), 0
        arrival = next(arrivals, None)
        while arrival or self._timers or not self.engine.idle:
            due = self._due(arrival)
            if self.engine.idle:
                self.engine.now = max(self.engine.now, due)
            else:
                self.engine.advance(due)
            while due <= self.engine.now:
                if arrival and arrival.at == due:
                    self._arrive(arrival)
                    arrival, arrived = next(arrivals, None), arrived + 1
                    if not arrived % _REPORTED:
                        progress(arrived)
                else:
                    heapq.heappop(self._timers)[2](due)
                due = self._due(arrival)
            self.engine.settle()
            self.fairness.passed(self.engine.now)
        if self._jobs:
            raise BrokenPromise(f"{len(self._jobs)} requests wait, and nothing will admit them.")
        progress(arrived)

    def _due(self, arrival: Arrival | None) -> float:
        timer = self._timers[0][0] if self._timers else math.inf
        return min(arrival.at, timer) if arrival else timer

    def _at(self, when: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def _arrive(self, arrival: Arrival) -> None:
        job = Job(str(next(self._numbers)), arrival)
        try:
            admitted = self._decide(self._scheduler.enter, self._admission_request(job), arrival.at)
        except Refused as refusal:
            self.refused[refusal.scope] += 1
            return
        self._jobs[job.request_id] = job
        self._admit(admitted, arrival.at)
        if job.waits:
            self._queue(job, arrival.at)
            self.most_waiting = max(self.most_waiting, self._scheduler.waiting)
        if arrival.patience_s < math.inf:
            self._at(arrival.at + arrival.patience_s, lambda now: self._cancel(job, now))

    def _admission_request(self, job: Job) -> AdmissionRequest:
        arrival = job.arrival
        return AdmissionRequest(
            request_id=job.request_id,
            tenant=str(arrival.tenant),
            weight=self._weight(arrival.tenant),
            version_id=job.version_id,
            prompts=(arrival.prompt_tokens,),
            # Clients state the maximum that they would accept.
            output_tokens=self.workload.lengths[1] - 1,
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
            self._in_flight += 1
        self.watch.window(now, full=self._in_flight >= self.machine.window)

    def _enter_slot(self, job: Job, version_id: int, now: float) -> None:
        self.watch.joined(version_id, now)
        seconds = self._loader.enter_slot(version_id, now)
        if seconds is not None:
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
        self.ttft_s[self._classes[arrival.tenant]].append(job.first_at - arrival.at)
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
        self._dequeue(job, now)
        if job.version_id is not None and not job.waits:
            self.watch.left(job.version_id, now, self._oldest(job.version_id))
            self._loader.leave_slot(job.version_id, now)
            if self._held.get(job.version_id) == []:
                del self._held[job.version_id]
                self.engine.stop_copy(job.version_id)
                self._loader.abandon(job.version_id, now)
        self._in_flight -= not job.waits
        prompt_tokens = 0 if job.waits else job.arrival.prompt_tokens
        leave = self._scheduler.leave
        ended = self._decide(leave, job.request_id, now, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self._admit(ended, now)

    def _staged(self, version_id: int, now: float) -> None:
        self.watch.available(version_id, now)
        self._admit(self._scheduler.staged(version_id, now), now)

    def _unstaged(self, version_id: int) -> None:
        self._scheduler.unstaged(version_id)
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
        ranks = self.workload.ranks
        return ranks[version_id % len(ranks)] * self.machine.bytes_per_rank

    def _weight(self, tenant: int) -> float:
        weights = self.machine.weights
        return weights[tenant % len(weights)] if tenant < self.workload.tenants else 1.0


def _classes(workload: Workload) -> list[str]:
    """Report class of each tenant."""
    largest = set(np.argsort(workload.rates[: workload.tenants])[-_LARGEST:].tolist())
    ordinary = ["largest" if tenant in largest else "others" for tenant in range(workload.tenants)]
    return [*ordinary, "hostile", "collector"]
