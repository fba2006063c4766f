"""Per-request log of the engine's outputs: NaN in logits, and token counts as they arrive. No answer carries them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachetools import FIFOCache

_REMEMBERED = 10_000
#: Tokens of a sequence at its first progress report.
_FIRST_TOLD = 2


#: Position of a sequence in its request: index of the prompt, index of the choice.
Place = tuple[int, int]


@dataclass(slots=True)
class SequenceUsage:
    """Tokens of one sequence so far. Of several that share a prompt, the first one counts its tokens.

    Attributes:
        name: vLLM's internal request id.
        place: position of the sequence in its request.
        request: usage of the whole request.
        told: number of tokens at the next progress report.
    """

    name: str
    place: Place
    request: "Usage"
    prompt_tokens: int = 0
    output_tokens: int = 0
    told: int = _FIRST_TOLD


@dataclass(slots=True)
class Usage:
    """Tokens of one request so far, over all its prompts and sequences.

    Attributes:
        first_at: monotonic time of the first token.
        prompts: indices of the prompts that are counted.
    """

    request_id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    prompts: set[int] = field(default_factory=set)
    sequences: dict[Place, SequenceUsage] = field(default_factory=dict)


class Follower(Protocol):
    """Observer of a request's sequences. It is called in the event loop, soon after the step."""

    def began(self, place: Place) -> None:
        """Handle a sequence's first token: its prompt has been prefilled."""

    def grew(self, place: Place, output_tokens: int) -> None:
        """Handle a sequence's progress, reported whenever its tokens have doubled."""

    def ended(self, sequence: SequenceUsage) -> None:
        """Handle a sequence's end in the engine, regardless of what the client has read."""


class OutputLog:
    """Tap on vLLM's output processor: records each step's outputs before the answers end.

    vLLM counts NaN in its sampler (``VLLM_COMPUTE_NANS_IN_LOGITS``) and reports them with every step's outputs, but
    puts them into no answer. The newest 10,000 ids of requests with NaN are kept.
    """

    def __init__(self) -> None:
        self._not_finite = FIFOCache[str, None](_REMEMBERED)
        self._usages: dict[str, Usage] = {}
        self._sequences: dict[str, SequenceUsage] = {}
        self._followers: dict[str, Follower] = {}

    def follow(self, request_id: str, follower: Follower) -> None:
        """Report the progress of a request's sequences to the follower, until the request's usage is taken."""
        self._followers[request_id] = follower

    def was_finite(self, request_id: str) -> bool:
        return request_id not in self._not_finite

    def unended(self, request_id: str) -> list[str]:
        """Return vLLM's names of the request's sequences that have produced a token and have not ended."""
        usage = self._usages.get(request_id)
        return [one.name for one in usage.sequences.values() if one.name in self._sequences] if usage else []

    def add(self, request_id: str, tokens: int) -> None:
        """Count tokens that the engine generated without reporting them."""
        if usage := self._usages.get(request_id):
            usage.output_tokens += tokens

    def take(self, request_id: str) -> Usage | None:
        """Pop the usage of a request that has ended or was aborted; None if it had no token."""
        self._followers.pop(request_id, None)
        usage = self._usages.pop(request_id, None)
        for sequence in usage.sequences.values() if usage else ():
            self._sequences.pop(sequence.name, None)
        return usage

    def watch(self, processor: Any) -> None:
        """Wrap vLLM's output processor to record every output."""
        process: Callable[..., Any] = processor.process_outputs
        sequences = self._sequences

        states = processor.request_states

        def noting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            counted = []
            for output in outputs:
                sequence = sequences.get(output.request_id)
                if (state := states.get(output.request_id)) is None:
                    # The request was aborted while this output was on its way. An ended sequence is not counted.
                    if sequence:
                        sequence.request.output_tokens += len(output.new_token_ids)
                    continue
                sequence = sequence or self._begin(state, output)
                counted.append((sequence, output))
                if output.num_nans_in_logits:
                    self._not_finite[own_id(state.external_req_id)] = None
            processed = process(outputs, *args, **kwargs)
            # By now vLLM has cut off the tokens after a stop string.
            for sequence, output in counted:
                tokens = len(output.new_token_ids)
                sequence.output_tokens += tokens
                sequence.request.output_tokens += tokens
                if output.request_id not in states:
                    self._end(sequence)
                elif sequence.output_tokens >= sequence.told:
                    sequence.told = 2 * sequence.output_tokens
                    self._tell(sequence, lambda follower, one: follower.grew(one.place, one.output_tokens))
            return processed

        processor.process_outputs = noting

    def _begin(self, state: Any, output: Any) -> SequenceUsage:
        """Create the usage of a sequence at its first output."""
        request_id, place = own_id(state.external_req_id), place_of(state.external_req_id, output.request_id)
        usage = self._usages.setdefault(request_id, Usage(request_id))
        sequence = SequenceUsage(output.request_id, place, usage)
        self._sequences[output.request_id] = usage.sequences[place] = sequence
        if usage.first_at is None:
            usage.first_at = time.monotonic()
        if place[0] not in usage.prompts:
            usage.prompts.add(place[0])
            sequence.prompt_tokens = state.prompt_len
            usage.prompt_tokens += state.prompt_len
            if output.prefill_stats:
                usage.cached_tokens += output.prefill_stats.num_cached_tokens
        self._tell(sequence, lambda follower, one: follower.began(one.place))
        return sequence

    def _end(self, sequence: SequenceUsage) -> None:
        # Later outputs of this sequence come after a stop string.
        self._sequences.pop(sequence.name, None)
        self._tell(sequence, lambda follower, one: follower.ended(one))

    def _tell(self, sequence: SequenceUsage, callback: Callable[[Follower, SequenceUsage], None]) -> None:
        if follower := self._followers.get(sequence.request.request_id):
            # Do not call it inside vLLM's own loop, which an error would end.
            asyncio.get_running_loop().call_soon(callback, follower, sequence)


def own_id(external_id: str) -> str:
    """Return Tenora's request id from vLLM's ``cmpl-<id>-<prompt>`` or ``chatcmpl-<id>``."""
    kind, _, rest = external_id.partition("-")
    return rest.rpartition("-")[0] if kind == "cmpl" else rest


def prompt_of(external_id: str) -> int:
    """Return the index of a prompt in its request; a chat has one prompt."""
    return int(external_id.rpartition("-")[2]) if external_id.startswith("cmpl-") else 0


def place_of(external_id: str, name: str) -> Place:
    """Return a sequence's position from vLLM's two ids; with several choices ``name`` is ``<choice>_<id>``."""
    choice, _, rest = name.partition("_")
    return prompt_of(external_id), int(choice) if rest and choice.isdigit() else 0
