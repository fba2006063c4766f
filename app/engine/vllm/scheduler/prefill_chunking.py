"""How much of its prompts a step on a CPU takes, so that the streams beside them do not stand still.

vLLM fills a step with prompts up to a number of tokens that is the same for every base and machine. On a CPU so full a
step can take seconds, and every stream waits for it, whoever sent the prompt. (Agrawal et al., "Taming
Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024: prompts are cut so that a step keeps to a
time.)
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

#: A step with one prompt takes at most the first of these, or so many times what it takes with its streams alone; where
#: it has none, so many times what an empty one takes. Adapters, which it reads whatever is cut, come on top.
_SECONDS, _OF_STREAMS, _OF_EMPTY = 0.05, 1.5, 4.0
#: So many prompts may each have that in a step. With one, a server that is full of short ones served 5 % less.
_PROMPTS = 4
#: More than a prompt has.
_ANY = 1e9
#: How fast what is known of costs follows what is seen. What stands in a step's way makes it longer, never shorter.
_DOWN, _UP = 0.3, 0.03


def can_bound_steps(config: VllmConfig) -> bool:
    """Whether prompts can be cut by what steps cost: on a CPU, unless an operator has said how they are cut.

    Steps have to follow each other for their times to be known, and each of their streams to get one token.
    """
    scheduling = config.scheduler_config
    cuts = scheduling.enable_chunked_prefill and not scheduling.long_prefill_token_threshold
    return current_platform.is_cpu() and cuts and not scheduling.async_scheduling and not config.speculative_config


class StepCosts:
    """What steps cost, learned from steps as they are: so much each, for each of their tokens, and for each adapter.

    An adapter's matrices are read whole for a single token. Were that taken for the price of a prompt's tokens, fewer
    of them would be let in, and each would seem to cost more.
    """

    def __init__(self) -> None:
        self._step_s: float | None = None
        self._token_s: float | None = None
        self._adapter_s: float | None = None

    def learn(self, streams: int, prompt_tokens: int, adapters: int, seconds: float) -> None:
        """What a step took that gave each of its streams a token and took so many tokens of prompts."""
        if prompt_tokens:
            if self._token_s is not None:
                # After a first step that took 2 s, tokens seemed to cost all that steps took, for dozens of requests.
                self._token_s = min(self._token_s, seconds / (streams + prompt_tokens))
            others = self._alone_s(streams) + adapters * (self._adapter_s or 0.0)
            self._token_s = _follow(self._token_s, (seconds - others) / prompt_tokens)
            return
        alone = seconds - streams * (self._token_s or 0.0)
        if adapters and self._step_s is not None and alone > self._step_s:
            self._adapter_s = _follow(self._adapter_s, (alone - self._step_s) / adapters)
        elif self._step_s is not None or alone > 0:
            self._step_s = _follow(self._step_s, alone)

    def tokens_of_prompt(self, streams: int) -> int | None:
        """Most tokens of one prompt in a step beside so many streams, at least one; None: any, as nothing is known."""
        if not self._step_s or not self._token_s:
            return None
        alone = self._alone_s(streams)
        most = max(_SECONDS, (_OF_STREAMS if streams else _OF_EMPTY) * alone)
        return max(1, int(min(_ANY, (most - alone) / self._token_s)))

    def _alone_s(self, streams: int) -> float:
        """Seconds of a step that has so many streams of the base and nothing else."""
        return (self._step_s or 0.0) + streams * (self._token_s or 0.0)


def evenly(prompts: Iterable[int], most: int) -> int:
    """Tokens of one prompt in a step that cut prompts into equal parts: at most ``most``, and none into more parts.

    Of a prompt of 16 tokens that is cut at 14, the first part would hold up the streams nearly as long as the whole.
    """
    return max((ceil(tokens / ceil(tokens / most)) for tokens in prompts if tokens > 0), default=most)


def _follow(usual: float | None, seen: float) -> float:
    seen = max(0.0, seen)
    return seen if usual is None else usual + (_DOWN if seen < usual else _UP) * (seen - usual)


class BoundedSteps(Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's scheduler, with no more of prompts in a step than its streams can wait for."""

    max_num_scheduled_tokens: int
    requests: dict[str, Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._costs = StepCosts()
        self._most_tokens = self.max_num_scheduled_tokens
        self._streams, self._began = 0, 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        # Should the tokens not suffice, those go first who get something from a step.
        self.running.sort(key=lambda request: request.is_prefill_chunk)
        self._streams = sum(not request.is_prefill_chunk for request in self.running)
        allowed = self._costs.tokens_of_prompt(self._streams)
        if allowed is not None:
            self.max_num_scheduled_tokens = min(self._most_tokens, self._streams + _PROMPTS * allowed)
            # vLLM does not apply it where there is only one request.
            self.scheduler_config.long_prefill_token_threshold = evenly(self._unread(), allowed)
        self._began = monotonic()
        return super().schedule(*args, **kwargs)

    def _unread(self) -> list[int]:
        """Tokens that prompts still have which may be in the next step."""
        begun = (request for request in self.running if request.is_prefill_chunk)
        prompts = islice(chain(begun, self.waiting), _PROMPTS)
        return [request.num_tokens - request.num_computed_tokens for request in prompts]

    def update_from_output(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        # A stream that was put off, as the cache had no room, takes no token.
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens:
            requests = map(self.requests.get, scheduler_output.num_scheduled_tokens)
            adapters = {found.lora_request.lora_int_id for found in requests if found and found.lora_request}
            streams, of_prompts = min(self._streams, tokens), max(0, tokens - self._streams)
            self._costs.learn(streams, of_prompts, len(adapters), monotonic() - self._began)
        return super().update_from_output(scheduler_output, *args, **kwargs)
