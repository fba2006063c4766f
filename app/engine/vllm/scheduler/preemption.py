"""Which requests have the places of a step, where there are more of them than places.

The queue before the engine lets a request in beyond the window that goes before some of those which run
(:mod:`app.scheduling.admission`). It has a smaller priority, as vLLM has it, and the one with the largest leaves the
steps until there is a place. On a CPU, where a token of a prompt costs nearly as much as one that is generated, it
keeps what the KV cache has of it, until those in the steps need its room. Else it is preempted as vLLM preempts where
the cache is full: its blocks are given back, and are mostly still there when it goes on; what is not is computed anew.
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

#: So many seconds after it first left the steps a request goes before all others but a tenant's first, the earliest of
#: those that do first.
MOST_ASIDE_S = 2.0
#: Counters are tokens over a weight, which may be hundreds; vLLM's priorities are whole numbers.
_STEPS = 1024
_FIRST = -(2**62)
_HURRIED = _FIRST + 1
#: Of those that wait; others wait for a grammar, and take no place.
_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def priority(tag: float) -> int:
    """vLLM's priority of a sequence with this tag: its tenant's counter when it was admitted, or -inf of a first."""
    return int(min(max(_STEPS * tag, _HURRIED + 1), -_FIRST)) if tag > -inf else _FIRST


class PrioritySteps(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler, whose steps have the requests with the smallest priorities."""

    running: list[Request]
    waiting: RequestQueue
    requests: dict[str, Request]
    max_num_active_reqs: int
    block_size: int
    prev_step_scheduled_req_ids: set[str]
    kv_cache_manager: KVCacheManager

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Those that are out of the steps and keep their blocks. To vLLM they run.
        self._aside: list[Request] = []
        #: When a request that has not ended first left the steps, by its id.
        self._left_at: dict[str, float] = {}
        # A GPU's worker has no room for more than run; and of an asynchronous step the tokens are still to come.
        self._holds = current_platform.is_cpu() and not self.scheduler_config.async_scheduling

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        # Not when they come: who goes away again before the next step moves nobody.
        self._hurry()
        self._arrange()
        return super().schedule(*args, **kwargs)

    def get_request_counts(self) -> tuple[int, int]:
        """How many run, and how many wait or are aside: whoever is aside is to keep the engine going."""
        running, waiting = super().get_request_counts()
        return running, waiting + len(self._aside)

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        """vLLM's; it looks for them among those that run, which the next step arranges again."""
        self.running += self._aside
        self._aside = []
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        return finished

    def _hurry(self) -> None:
        """Let those go first that have stood still for long enough."""
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
        """Take those out of the steps that go after others which would find no place, and bring back who finds one."""
        places = self.max_num_active_reqs
        if not self._aside and len(self.running) + len(self.waiting) <= places:
            return
        ready = [request for request in self.waiting if request.status in _READY]
        first = sorted([*self.running, *self._aside, *ready])[:places]
        names = {request.request_id for request in first}
        for request in [one for one in self.running if one.request_id not in names and self._may_leave(one)]:
            self._leave(request)
        free = places - len(self.running) - sum(request.request_id in names for request in ready)
        for request in [one for one in first if one in self._aside][: max(0, free)]:
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
        # It may go on in the very next step, which is to know it as one that was not in the last.
        self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _is_short_of_blocks(self, requests: list[Request]) -> bool:
        """Whether the KV cache has less room than these requests still want for the tokens that they have by now."""
        size, cache = self.block_size, self.kv_cache_manager
        wanted = sum(cdiv(one.num_tokens, size) - cdiv(one.num_computed_tokens, size) for one in requests)
        return bool(wanted + cache.watermark_blocks > cache.block_pool.get_num_free_blocks())

    def _may_leave(self, request: Request) -> bool:
        # The logprobs of a prompt that is read again would be told again.
        whole = request.sampling_params is not None and request.sampling_params.prompt_logprobs is None
        return whole and bool(self._request_blocks_can_be_freed(request))
