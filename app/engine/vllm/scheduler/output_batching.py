"""Output batching: the tokens of an answer that is not streamed leave the engine's process a few at a time.

The client of such an answer sees nothing before its end. Yet vLLM's engine reports every token as it comes, which wakes
the server after each step. Here these tokens stay in the engine's process until there are a few. First tokens, ends and
all other information leave with their step, first tokens before the rest. Streams get each token as it comes.
See docs/decisions/0020-batch-outputs-that-are-not-streamed.md.
"""

from itertools import islice
from typing import Any

from cachetools import FIFOCache
from vllm.config import VllmConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.metrics.stats import IterationStats, PrefixCacheStats
from vllm.v1.request import Request

#: Maximum tokens of a sequence that are generated before they are reported to the server.
MOST_UNTOLD = 32
#: A message that has to go anyway also carries the tokens of up to ``ALONG`` sequences with at least ``ENOUGH`` tokens.
#: All of them at once would delay the streams in the same message.
ALONG, ENOUGH = 8, 8
_REMEMBERED = 10_000
#: Statistics of a single step, from parts that are off unless an operator enables them.
SELDOM = (
    "connector_prefix_cache_stats",
    "kv_cache_eviction_events",
    "spec_decoding_stats",
    "kv_connector_stats",
    "ec_connector_stats",
    "perf_stats",
)


class CoalescedOutputs(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler that holds back tokens of answers that are not streamed."""

    vllm_config: VllmConfig
    requests: dict[str, Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._untold: dict[str, EngineCoreOutput] = {}
        #: Numbers of unreported tokens of aborted requests, until the server asks for them.
        self._given_up = FIFOCache[str, int](_REMEMBERED)

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        # Tenora's only server is client 0. Speculative decoding counts tokens by step, so it is excluded.
        if outputs.keys() == {0} and not self.vllm_config.speculative_config and not self._has_news(outputs[0]):
            return {}
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        """End requests for the server. Of their unreported tokens only the number is kept."""
        finished: list[Request] = super().finish_requests(*args, **kwargs)
        for request in finished:
            if output := self._untold.pop(request.request_id, None):
                self._given_up[request.request_id] = len(output.new_token_ids)
        return finished

    def take_untold(self, names: list[str]) -> int:
        """Pop the number of unreported tokens of these aborted requests."""
        return sum(self._given_up.pop(name, 0) for name in names)

    def _has_news(self, step: EngineCoreOutputs) -> bool:
        """Hold back a step's outputs that can wait, and add those that waited enough. Return whether to send it."""
        now = [output for output in step.outputs if not self._keeps(output)]
        if step.outputs and not now and not _says_more(step):
            return False
        oldest = islice(self._untold.values(), ALONG)
        enough = [output for output in oldest if len(output.new_token_ids) >= ENOUGH]
        for output in enough:
            del self._untold[output.request_id]
        # The server processes outputs in order, and a first token is the most urgent.
        step.outputs = sorted(now + enough, key=lambda output: output.prefill_stats is None)
        return True

    def _keeps(self, output: EngineCoreOutput) -> bool:
        """Hold an output back if it can wait. Otherwise prepend the tokens held back before it."""
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
        """Return whether an output carries only tokens, of an answer that is not streamed.

        With stop strings it cannot wait: the server searches for them, and they end a sequence.
        """
        if not _says_only_tokens(output) or (request := self.requests.get(output.request_id)) is None:
            return False
        params = request.sampling_params
        return params is not None and params.output_kind is RequestOutputKind.FINAL_ONLY and not params.stop


class TokenStatistics(IterationStats):  # type: ignore[misc]
    """Token statistics of one message to the server. Several tokens of one sequence share its time equally.

    vLLM would count them as one token that took all of it.
    """

    inter_token_latencies_iter: list[float]

    def update_from_output(self, output: EngineCoreOutput, *args: Any, **kwargs: Any) -> None:
        latencies = self.inter_token_latencies_iter
        before = len(latencies)
        super().update_from_output(output, *args, **kwargs)
        tokens = len(output.new_token_ids)
        if tokens > 1 and len(latencies) > before:
            latencies[-1:] = [latencies[-1] / tokens] * tokens


def add_utility() -> None:
    """Let the server call :meth:`CoalescedOutputs.take_untold`, by name, as a utility method of the core."""
    EngineCore.tenora_untold = _untold


def _untold(core: EngineCore, names: list[str]) -> int:
    return int(core.scheduler.take_untold(names))


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
    """Return whether a step carries more than outputs. The number of running requests can wait for the next step."""
    stats = step.scheduler_stats
    if step.finished_requests or stats is None:
        return bool(step.finished_requests)
    return stats.prefix_cache_stats != PrefixCacheStats() or any(getattr(stats, name) for name in SELDOM)
