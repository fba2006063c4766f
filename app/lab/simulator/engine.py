"""Simulated engine with continuous batching: each step gives every sequence in the batch one token."""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable

from app.lab.simulator.costs import Costs
from app.lab.simulator.job import Job

#: Tolerance in seconds below which a copy is done, since sums of chunks are not exact.
_NOTHING_S = 1e-12


class Engine:
    """Batch and copies into slots. Changes take effect with the next step.

    The step after a request joined computes its whole prompt and makes its first token. Copies into slots run in order
    between steps, one chunk at a time. Without a batch they run to their end. Sequences are never preempted: those
    admitted beyond the window make the steps longer for all.

    Args:
        finished: callback for each request after its last token.
        copied: callback for each version after its copy into a slot.

    Attributes:
        now: end of the last step, in seconds.
        steps: number of steps.
        busy_s: seconds spent computing or copying.
    """

    def __init__(self, costs: Costs, *, finished: Callable[[Job], None], copied: Callable[[int], None]) -> None:
        self._costs, self._finished, self._copied = costs, finished, copied
        self.now = self.busy_s = 0.0
        self.steps = 0
        self._joining: list[Job] = []
        #: Heap of (last step, id, job). An aborted job stays until its last step.
        self._batch: list[tuple[int, str, Job]] = []
        self._sequences = 0
        self._adapters: Counter[int] = Counter()
        self._copies: deque[tuple[int, float]] = deque()

    @property
    def idle(self) -> bool:
        """True if there is nothing to compute and nothing to copy."""
        return not (self._sequences or self._joining or self._copies)

    def join(self, job: Job) -> None:
        self._joining.append(job)

    def copy(self, version_id: int, seconds: float) -> None:
        """Queue a copy of a version into its slot."""
        self._copies.append((version_id, seconds))

    def stop_copy(self, version_id: int) -> None:
        """Cancel an unfinished copy."""
        self._copies = deque(copy for copy in self._copies if copy[0] != version_id)

    def abort(self, job: Job) -> None:
        """Remove a request from the batch."""
        if job in self._joining:
            self._joining.remove(job)
        elif job.last_step:
            self._leave(job)

    def advance(self, until: float) -> None:
        """Run at least one step, and continue until a step ends at ``until`` or later or a change occurs."""
        if self._joining or self._copies:
            self._changing_step()
        else:
            self._drop_aborted()
            seconds = self._costs.step(self._sequences, 0, len(self._adapters))
            left = self._batch[0][0] - self.steps
            steps = left if math.isinf(until) else min(left, max(1, math.ceil((until - self.now) / seconds)))
            self._pass(steps, steps * seconds)

    def settle(self) -> None:
        """Report the requests whose last token came with the last step."""
        while self._batch and self._batch[0][0] <= self.steps:
            job = heapq.heappop(self._batch)[2]
            if not job.gone:
                self._leave(job)
                self._finished(job)

    def _changing_step(self) -> None:
        for job in self._joining:
            if job.version_id is not None:
                self._adapters[job.version_id] += 1
        self._sequences += len(self._joining)
        copying, copied = self._copy_some()
        if not self._sequences:
            self._pass(0, copying)
        else:
            prefill = sum(job.arrival.prompt_tokens for job in self._joining)
            self._pass(1, copying + self._costs.step(self._sequences, prefill, len(self._adapters)))
        for job in self._joining:
            job.first_at = self.now
            job.last_step = self.steps + job.arrival.output_tokens - 1
            heapq.heappush(self._batch, (job.last_step, job.request_id, job))
        self._joining = []
        for version_id in copied:
            self._copied(version_id)

    def _copy_some(self) -> tuple[float, list[int]]:
        """Copy for at most one chunk. Return the seconds spent and the completed versions."""
        if not self._sequences and self._copies:
            version_id, seconds = self._copies.popleft()
            return seconds, [version_id]
        left = self._costs.copy_chunk_s
        done: list[int] = []
        while self._copies and left > 0:
            version_id, seconds = self._copies.popleft()
            if seconds - left > _NOTHING_S:
                self._copies.appendleft((version_id, seconds - left))
                return self._costs.copy_chunk_s, done
            left = max(0.0, left - seconds)
            done.append(version_id)
        return self._costs.copy_chunk_s - left if done else 0.0, done

    def _drop_aborted(self) -> None:
        while self._batch[0][2].gone:
            heapq.heappop(self._batch)

    def _leave(self, job: Job) -> None:
        self._sequences -= 1
        if job.version_id is not None:
            self._adapters[job.version_id] -= 1
            if not self._adapters[job.version_id]:
                del self._adapters[job.version_id]

    def _pass(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self.now += seconds
        self.busy_s += seconds
