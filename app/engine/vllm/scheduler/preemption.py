"""Preemption by priority: selects the requests of a step if there are more of them than places.

The admission queue may admit a request beyond its window that goes before some of those that run
(:mod:`app.scheduling.admission`). The new request has a smaller priority in vLLM's sense. The request with the largest
priority leaves the steps until a place is free.

On a CPU a token of a prompt costs nearly as much as a generated one. So a request that leaves keeps its KV cache blocks
until the requests in the steps need the room. Otherwise it is preempted as by vLLM with a full cache: its blocks are
freed. Most of them are still there when it resumes, and the rest is recomputed.
"""

from math import inf
from time import monotonic
from typing import Any

from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

#: Seconds after a request first left the steps at which it goes before all others, except for a tenant's first request.
#: Among several such requests, the earliest goes first.
MOST_ASIDE_S = 2.0
#: Priorities per unit of a counter. Counters are tokens over a weight, which may be hundreds; priorities are integers.
_STEPS = 1024
_FIRST = -(2**62)
_HURRIED = _FIRST + 1
#: Statuses of waiting requests that are ready for a place. Others wait for a grammar and take none.
_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def priority(start_tag: float) -> int:
    """Convert a start tag to vLLM's priority: a tenant's counter at admission, or -inf for a tenant's first request."""
    return int(min(max(_STEPS * start_tag, _HURRIED + 1), -_FIRST)) if start_tag > -inf else _FIRST


class PrioritySteps(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler that selects the requests with the smallest priorities for its steps."""

    running: list[Request]
    waiting: RequestQueue
    requests: dict[str, Request]
    max_num_active_reqs: int
    block_size: int
    prev_step_scheduled_req_ids: set[str]
    kv_cache_manager: KVCacheManager

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Requests outside the steps that keep their blocks. vLLM's status for them is still running.
        self._aside: list[Request] = []
        #: Monotonic time at which a request that has not ended first left the steps, by its id.
        self._left_at: dict[str, float] = {}
        # A GPU's worker has room for running requests only. An asynchronous step has tokens that are still to come.
        self._holds = current_platform.is_cpu() and not self.scheduler_config.async_scheduling

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        # Do this here, not on arrival: a request that is aborted before the next step must not displace another.
        self._hurry()
        self._arrange()
        return super().schedule(*args, **kwargs)

    def get_request_counts(self) -> tuple[int, int]:
        """Count running and waiting requests. Those set aside count as waiting, which keeps the engine's loop going."""
        running, waiting = super().get_request_counts()
        return running, waiting + len(self._aside)

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        """End requests. Those set aside rejoin ``running``, where vLLM looks for them, until the next step."""
        self.running += self._aside
        self._aside = []
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        return finished

    def _hurry(self) -> None:
        """Raise the priority of requests that left the steps long enough ago."""
        now = monotonic()
        for name, left_at in list(self._left_at.items()):
            if (request := self.requests.get(name)) is None:
                del self._left_at[name]
            elif now - left_at >= MOST_ASIDE_S and request.priority > _HURRIED:
                preempted = request.status == RequestStatus.PREEMPTED
                if preempted:
                    self.waiting.remove_request(request)
                request.priority = _HURRIED
                if preempted:
                    self.waiting.add_request(request)

    def _arrange(self) -> None:
        """Set aside running requests that others precede, if places are short, and resume those that have a place."""
        places = self.max_num_active_reqs
        if not self._aside and len(self.running) + len(self.waiting) <= places:
            return
        ready = [request for request in self.waiting if request.status in _READY]
        first = sorted([*self.running, *self._aside, *ready])[:places]
        names = {request.request_id for request in first}
        for request in [
            request for request in self.running if request.request_id not in names and self._may_leave(request)
        ]:
            self._leave(request)
        free = places - len(self.running) - sum(request.request_id in names for request in ready)
        for request in [request for request in first if request in self._aside][: max(0, free)]:
            self._aside.remove(request)
            self.running.append(request)
        while self._aside and self._is_short_of_blocks(first):
            self._aside.remove(last := max(self._aside))
            self._give_back(last)

    def _leave(self, request: Request) -> None:
        self._left_at.setdefault(request.request_id, monotonic())
        self.running.remove(request)
        if self._holds:
            self._aside.append(request)
        else:
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._preempt_request(request, monotonic())
        # It may resume in the very next step, which must treat it as absent from the last one.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _is_short_of_blocks(self, requests: list[Request]) -> bool:
        """Return whether the KV cache lacks room for these requests, given the tokens that they have by now."""
        size, cache = self.block_size, self.kv_cache_manager
        blocks = sum(cdiv(request.num_tokens, size) - cdiv(request.num_computed_tokens, size) for request in requests)
        return bool(blocks + cache.watermark_blocks > cache.block_pool.get_num_free_blocks())

    def _may_leave(self, request: Request) -> bool:
        # A repeated prefill would report the logprobs of its prompt twice.
        whole = request.sampling_params is not None and request.sampling_params.prompt_logprobs is None
        return whole and bool(self._request_blocks_can_be_freed(request))
