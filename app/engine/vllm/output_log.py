"""What the engine's steps say of each request and no answer carries: NaN among its logits, tokens as they come."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

_REMEMBERED = 10_000
#: Tokens of a sequence at which its follower is told of them first.
_FIRST_TOLD = 2


#: Which of a request's prompts, and which of its choices.
Place = tuple[int, int]


@dataclass(slots=True)
class SequenceUsage:
    """Tokens of one sequence so far; those of its prompt are the first one's of several that share it.

    Attributes:
        name: the engine's own.
        place: of the sequence in its request.
        told: tokens from which on its follower is to be told of them again.
    """

    name: str
    place: Place
    request: "Usage"
    prompt_tokens: int = 0
    output_tokens: int = 0
    told: int = _FIRST_TOLD


@dataclass(slots=True)
class Usage:
    """Tokens of one request so far, all its prompts and sequences together; when the first came, monotonic."""

    request_id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    prompts: set[int] = field(default_factory=set)
    sequences: dict[Place, SequenceUsage] = field(default_factory=dict)


class Follower(Protocol):
    """Whoever wants to know how a request's sequences get on. It is called in the event loop, soon after the step."""

    def began(self, place: Place) -> None:
        """A sequence has its first token, so its prompt was read."""

    def grew(self, place: Place, output_tokens: int) -> None:
        """A sequence has so many tokens, told whenever they have doubled."""

    def ended(self, sequence: SequenceUsage) -> None:
        """A sequence has ended in the engine, whoever has read what of it."""


class OutputLog:
    """Reads the outputs of every step where they arrive, in this process, before the answers that they belong to end.

    vLLM counts NaN in its sampler (``VLLM_COMPUTE_NANS_IN_LOGITS``) and reports them with every step's outputs, but
    puts them into no answer. Request ids whose logits held NaN are remembered, the newest 10,000 of them.
    """

    def __init__(self) -> None:
        self._not_finite: OrderedDict[str, None] = OrderedDict()
        self._usages: dict[str, Usage] = {}
        self._sequences: dict[str, SequenceUsage] = {}
        self._followers: dict[str, Follower] = {}

    def follow(self, request_id: str, follower: Follower) -> None:
        """Tell the follower of a request's sequences until its usage is taken."""
        self._followers[request_id] = follower

    def was_finite(self, request_id: str) -> bool:
        return request_id not in self._not_finite

    def unended(self, request_id: str) -> list[str]:
        """The engine's names of the request's sequences that have had a token and have not ended."""
        usage = self._usages.get(request_id)
        return [one.name for one in usage.sequences.values() if one.name in self._sequences] if usage else []

    def add(self, request_id: str, tokens: int) -> None:
        """Count tokens that the engine has made and never told of."""
        if usage := self._usages.get(request_id):
            usage.output_tokens += tokens

    def take(self, request_id: str) -> Usage | None:
        """The tokens of a request that has ended or is given up, if it had any; nothing of it is kept."""
        self._followers.pop(request_id, None)
        usage = self._usages.pop(request_id, None)
        for sequence in usage.sequences.values() if usage else ():
            self._sequences.pop(sequence.name, None)
        return usage

    def watch(self, processor: Any) -> None:
        """Read every output that reaches vLLM's output processor."""
        process: Callable[..., Any] = processor.process_outputs
        sequences = self._sequences

        states = processor.request_states

        def noting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            counted = []
            for output in outputs:
                sequence = sequences.get(output.request_id)
                if (state := states.get(output.request_id)) is None:
                    # Given up while this was on its way, if it has not ended.
                    if sequence:
                        sequence.request.output_tokens += len(output.new_token_ids)
                    continue
                sequence = sequence or self._begin(state, output)
                counted.append((sequence, output))
                if output.num_nans_in_logits:
                    self._note(state.external_req_id)
            processed = process(outputs, *args, **kwargs)
            # Now tokens behind a stop string are cut off.
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
        """The usage of a sequence that is seen for the first time."""
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
        # What comes of it from here on is behind a stop string.
        self._sequences.pop(sequence.name, None)
        self._tell(sequence, lambda follower, one: follower.ended(one))

    def _tell(self, sequence: SequenceUsage, what: Callable[[Follower, SequenceUsage], None]) -> None:
        if follower := self._followers.get(sequence.request.request_id):
            # Not from within vLLM's own loop, which would end with an error here.
            asyncio.get_running_loop().call_soon(what, follower, sequence)

    def _note(self, external_id: str) -> None:
        self._not_finite[own_id(external_id)] = None
        while len(self._not_finite) > _REMEMBERED:
            self._not_finite.popitem(last=False)


def own_id(external_id: str) -> str:
    """The request's id as Tenora made it: ``cmpl-<id>-<prompt>`` and ``chatcmpl-<id>`` are vLLM's."""
    kind, _, rest = external_id.partition("-")
    return rest.rpartition("-")[0] if kind == "cmpl" else rest


def prompt_of(external_id: str) -> int:
    """Which of a request's prompts it is; a chat has one."""
    return int(external_id.rpartition("-")[2]) if external_id.startswith("cmpl-") else 0


def place_of(external_id: str, name: str) -> Place:
    """Which of a request's sequences it is, by vLLM's two ids; of several choices the second is ``<choice>_<id>``."""
    choice, _, rest = name.partition("_")
    return prompt_of(external_id), int(choice) if rest and choice.isdigit() else 0
