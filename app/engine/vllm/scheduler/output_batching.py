"""Tokens that nobody waits for leave the engine's process a few at a time.

Of an answer that is not streamed a client sees nothing before its end, yet vLLM's engine tells the server of every
token as it comes. That wakes the server after each step: more than half of what it does for an answer of 32 tokens that
is alone, a third for one of many. Here these tokens stay in the engine's process until there are a few. First tokens,
ends and whatever else there is to say go out with their step, first tokens before the rest, and streams get each token
as it comes.
"""

from collections import OrderedDict
from itertools import islice
from typing import Any

from vllm.config import VllmConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request

#: Most tokens of a sequence that are made before the server is told of one of them. It reads 1,000 in 1 ms.
MOST_UNTOLD = 32
#: With a message that has to go anyway, the tokens of so many sequences go along that have so many: all of them at once
#: would keep the streams beside them waiting.
ALONG, ENOUGH = 8, 8
_REMEMBERED = 10_000
#: Statistics of a step that are of that step alone, of parts that are off unless an operator turns them on.
SELDOM = (
    "connector_prefix_cache_stats",
    "kv_cache_eviction_events",
    "spec_decoding_stats",
    "kv_connector_stats",
    "ec_connector_stats",
    "perf_stats",
)


class CoalescedOutputs(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler, whose steps keep tokens to themselves that nobody waits for."""

    vllm_config: VllmConfig
    requests: dict[str, Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._untold: dict[str, EngineCoreOutput] = {}
        #: Tokens of requests that were given up before they were told of them, until the server asks.
        self._given_up: OrderedDict[str, int] = OrderedDict()

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        told: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        # There is one server, which has no number; speculation counts tokens by the step that they came with.
        if told.keys() == {0} and not self.vllm_config.speculative_config and not self._has_news(told[0]):
            return {}
        return told

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        """End requests as the server wants it; of their tokens only the number still matters."""
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        for request in finished:
            if output := self._untold.pop(request.request_id, None):
                self._given_up[request.request_id] = len(output.new_token_ids)
        while len(self._given_up) > _REMEMBERED:
            self._given_up.popitem(last=False)
        return finished

    def take_untold(self, names: list[str]) -> int:
        """How many tokens of these requests, which were given up, the server was not told of; the next call says 0."""
        return sum(self._given_up.pop(name, 0) for name in names)

    def _has_news(self, step: EngineCoreOutputs) -> bool:
        """Take out of a step what can wait and put in what has waited long enough; whether it has to be told."""
        now = [output for output in step.outputs if not self._keeps(output)]
        if step.outputs and not now and not _says_more(step):
            return False
        oldest = islice(self._untold.values(), ALONG)
        enough = [output for output in oldest if len(output.new_token_ids) >= ENOUGH]
        for output in enough:
            del self._untold[output.request_id]
        # The server takes them in order, and somebody waits for a first token more than for any other.
        step.outputs = sorted(now + enough, key=lambda output: output.prefill_stats is None)
        return True

    def _keeps(self, output: EngineCoreOutput) -> bool:
        """Keep an output if it can wait; if not, it gets what was kept before it."""
        name = output.request_id
        kept = self._untold.get(name)
        if kept:
            kept.new_token_ids += output.new_token_ids
        if len((kept or output).new_token_ids) < MOST_UNTOLD and self._can_wait(output):
            self._untold.setdefault(name, output)
            return True
        if kept:
            output.new_token_ids = self._untold.pop(name).new_token_ids
        return False

    def _can_wait(self, output: EngineCoreOutput) -> bool:
        """Whether an output says nothing but tokens, of an answer that is told whole.

        A stop string, which ends a sequence, is looked for by the server.
        """
        if not _says_only_tokens(output) or (request := self.requests.get(output.request_id)) is None:
            return False
        asked = request.sampling_params
        return asked is not None and asked.output_kind is RequestOutputKind.FINAL_ONLY and not asked.stop


def _says_only_tokens(output: EngineCoreOutput) -> bool:
    return (
        output.finish_reason is None
        and output.prefill_stats is None  # comes with the first token
        and output.events is None
        and output.new_logprobs is None
        and output.new_sampling_mask is None
        and output.routed_experts is None
        and not output.num_nans_in_logits
    )


def _says_more(step: EngineCoreOutputs) -> bool:
    """Whether something besides outputs would be missed; how many requests run is told the next time."""
    stats = step.scheduler_stats
    if step.finished_requests or stats is None:
        return bool(step.finished_requests)
    return stats.prefix_cache_stats != PrefixCacheStats() or any(getattr(stats, name) for name in SELDOM)
