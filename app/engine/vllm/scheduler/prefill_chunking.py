"""Prefill chunking on a CPU: bounds the prompt tokens of a step by their measured cost, so that streams do not stall.

vLLM fills a step with prompts up to a number of tokens that is the same for every base and machine. On a CPU such a
step can take seconds, and every stream waits for it, regardless of who sent the prompt. Chunks that keep a step within
a time budget are due to Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI
2024. See docs/decisions/0021-prefill-chunks-by-measured-cost.md.
"""

from collections.abc import Iterable
from itertools import chain, islice
from math import ceil
from time import monotonic
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

#: Budget of a step with one prompt: ``_SECONDS``, or if longer a multiple of the time without the prompt. The multiple
#: is ``_OF_STREAMS`` with streams, else ``_OF_EMPTY``. Adapters come on top, as any chunk reads them whole.
_SECONDS, _OF_STREAMS, _OF_EMPTY = 0.05, 1.5, 4.0
#: Prompts that may each use this budget in a step.
_PROMPTS = 4
#: Upper bound of a chunk, beyond any prompt.
_ANY = 1e9
#: Smoothing factors for cheaper and for dearer observations. Interference makes a step longer, never shorter.
_DOWN, _UP = 0.3, 0.03


def can_bound_steps(config: VllmConfig) -> bool:
    """Return whether prompts can be cut by measured cost: on a CPU, unless an operator has set how they are cut.

    Steps must follow each other, or their times are unknown, and each of their streams must get one token.
    """
    scheduling = config.scheduler_config
    cuts = scheduling.enable_chunked_prefill and not scheduling.long_prefill_token_threshold
    return current_platform.is_cpu() and cuts and not scheduling.async_scheduling and not config.speculative_config


class StepCosts:
    """Cost model of steps, learned from observed ones: a cost per step, per token and per adapter.

    An adapter's matrices are read whole even for a single token. If token cost included that, fewer tokens would be
    allowed, and each would seem to cost even more.
    """

    def __init__(self) -> None:
        self._step_s: float | None = None
        self._token_s: float | None = None
        self._adapter_s: float | None = None

    def learn(self, streams: int, prompt_tokens: int, adapters: int, seconds: float) -> None:
        """Learn from a step that gave each of its streams one token and prefilled ``prompt_tokens`` tokens."""
        if prompt_tokens:
            if self._token_s is not None:
                # Bound the token cost by this step's mean. A slow first step would distort it for dozens of requests.
                self._token_s = min(self._token_s, seconds / (streams + prompt_tokens))
            other_s = self._alone_s(streams) + adapters * (self._adapter_s or 0.0)
            self._token_s = _follow(self._token_s, (seconds - other_s) / prompt_tokens)
            return
        alone = seconds - streams * (self._token_s or 0.0)
        if adapters and self._step_s is not None and alone > self._step_s:
            self._adapter_s = _follow(self._adapter_s, (alone - self._step_s) / adapters)
        elif self._step_s is not None or alone > 0:
            self._step_s = _follow(self._step_s, alone)

    def tokens_of_prompt(self, streams: int) -> int | None:
        """Return the maximum tokens of one prompt in a step with these streams, at least 1; None while unknown."""
        if not self._step_s or not self._token_s:
            return None
        alone = self._alone_s(streams)
        most = max(_SECONDS, (_OF_STREAMS if streams else _OF_EMPTY) * alone)
        return max(1, int(min(_ANY, (most - alone) / self._token_s)))

    def _alone_s(self, streams: int) -> float:
        """Seconds of a step that has only these streams, all of the base."""
        return (self._step_s or 0.0) + streams * (self._token_s or 0.0)


def evenly(prompts: Iterable[int], most: int) -> int:
    """Return the chunk size, at most ``most``, that cuts prompts into equal parts without adding a part.

    If a prompt of 16 tokens is cut at 14, its first part delays the streams nearly as long as the whole.
    """
    return max((ceil(tokens / ceil(tokens / most)) for tokens in prompts if tokens > 0), default=most)


def _follow(usual: float | None, measured: float) -> float:
    measured = max(0.0, measured)
    return measured if usual is None else usual + (_DOWN if measured < usual else _UP) * (measured - usual)


class BoundedSteps(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler that limits the prompt tokens of a step, so that its streams do not wait too long."""

    max_num_scheduled_tokens: int
    requests: dict[str, Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._costs = StepCosts()
        self._most_tokens = self.max_num_scheduled_tokens
        self._streams, self._began = 0, 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        # If the tokens do not suffice, streams go first.
        self.running.sort(key=lambda request: request.is_prefill_chunk)
        self._streams = sum(not request.is_prefill_chunk for request in self.running)
        allowed = self._costs.tokens_of_prompt(self._streams)
        if allowed is not None:
            self.max_num_scheduled_tokens = min(self._most_tokens, self._streams + _PROMPTS * allowed)
            # vLLM does not apply it to a single request.
            self.scheduler_config.long_prefill_token_threshold = evenly(self._unread(), allowed)
        self._began = monotonic()
        return super().schedule(*args, **kwargs)

    def _unread(self) -> list[int]:
        """Tokens that are left of the prompts that may be in the next step."""
        begun = (request for request in self.running if request.is_prefill_chunk)
        prompts = islice(chain(begun, self.waiting), _PROMPTS)
        return [request.num_tokens - request.num_computed_tokens for request in prompts]

    def update_from_output(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        # A stream that was deferred, as the cache had no room, takes no token.
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            requests = map(self.requests.get, scheduler_output.num_scheduled_tokens)
            adapters = {request.lora_request.lora_int_id for request in requests if request and request.lora_request}
            streams, of_prompts = min(self._streams, tokens), max(0, tokens - self._streams)
            self._costs.learn(streams, of_prompts, len(adapters), monotonic() - self._began)
        return super().update_from_output(scheduler_output, *args, **kwargs)
