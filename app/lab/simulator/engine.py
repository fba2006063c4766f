"""An engine with continuous batching, as a clock: each step gives every sequence in the batch one token."""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable

from app.lab.simulator.costs import Costs
from app.lab.simulator.job import Job

#: A copy with less than this left is done; sums of chunks are not exact.
_NOTHING_S = 1e-12


class Engine:
    """The batch and the copies into slots; what changes it takes effect with the next step.

    A prompt is computed in the step after its request joined, which makes the first token; prompts are not cut into
    pieces. Copies into slots run between steps, in order and a piece at a time; without a batch they run through.
    Nobody is set aside: who is let in beyond the window makes the steps longer for all.

    Args:
        finished: told of each request whose last token is there.
        copied: told of each version whose copy is in its slot.

    Attributes:
        now: seconds; the end of the last step.
        steps: how many there were.
        busy_s: seconds in which it computed or copied.
    """

    def __init__(self, costs: Costs, *, finished: Callable[[Job], None], copied: Callable[[int], None]) -> None:
        self._costs, self._finished, self._copied = costs, finished, copied
        self.now = self.busy_s = 0.0
        self.steps = 0
        self._joining: list[Job] = []
        #: (last step, id, job); an aborted job stays until its turn.
        self._batch: list[tuple[int, str, Job]] = []
        self._sequences = 0
        self._adapters: Counter[int] = Counter()
        self._copies: deque[tuple[int, float]] = deque()

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing to copy."""
        return not (self._sequences or self._joining or self._copies)

    def join(self, job: Job) -> None:
        self._joining.append(job)

    def copy(self, version_id: int, seconds: float) -> None:
        """Copy a version into its slot, after those before it."""
        self._copies.append((version_id, seconds))

    def stop_copy(self, version_id: int) -> None:
        """Leave a copy as it is; it has not ended."""
        self._copies = deque(copy for copy in self._copies if copy[0] != version_id)

    def abort(self, job: Job) -> None:
        """Take a request out of the batch."""
        if job in self._joining:
            self._joining.remove(job)
        elif job.last_step:
            self._leave(job)

    def advance(self, until: float) -> None:
        """Run at least one step, and on until one ends at ``until`` or later, or anything changes."""
        if self._joining or self._copies:
            self._changing_step()
        else:
            self._drop_aborted()
            seconds = self._costs.step(self._sequences, 0, len(self._adapters))
            left = self._batch[0][0] - self.steps
            steps = left if math.isinf(until) else min(left, max(1, math.ceil((until - self.now) / seconds)))
            self._pass(steps, steps * seconds)

    def settle(self) -> None:
        """Report whose last token came with the last step."""
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
        """Seconds that this pause copies, and the versions that are done."""
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
