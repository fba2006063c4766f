"""Per-request log of the engine's outputs: NaN in logits, and token counts as they arrive. No answer carries them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Tokens of a sequence at its first progress report.
_FIRST_REPORT = 2


#: Position of a sequence in its request: index of the prompt, index of the choice.
Place = tuple[int, int]


@dataclass(slots=True)
class SequenceUsage:
    """Tokens of one sequence so far. Of several that share a prompt, the first one counts its tokens.

    Attributes:
        name: vLLM's internal request id.
        place: position of the sequence in its request.
        request: usage of the whole request.
        next_report: number of tokens at the next progress report.
    """

    name: str
    place: Place
    request: "RequestUsage"
    prompt_tokens: int = 0
    output_tokens: int = 0
    next_report: int = _FIRST_REPORT


@dataclass(slots=True)
class RequestUsage:
    """Tokens of one request so far, over all its prompts and sequences.

    Attributes:
        follower: observer of its sequences, if it has one.
        first_at: monotonic time of the first token.
        finite: False once one of its sequences had NaN in its logits.
        prompts: indices of the prompts that are counted.
    """

    follower: "Follower | None" = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    finite: bool = True
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
    """Tap on vLLM's output processor: adds each step's outputs to the usages of running requests.

    vLLM counts NaN in its sampler (``VLLM_COMPUTE_NANS_IN_LOGITS``) and reports them with every step's outputs, but
    puts them into no answer. Requests that were not begun here are not recorded.
    """

    def __init__(self) -> None:
        #: Of requests that run: by Tenora's request id, and by vLLM's name of the sequence.
        self._requests: dict[str, RequestUsage] = {}
        self._sequences: dict[str, SequenceUsage] = {}

    def begin(self, request_id: str, usage: RequestUsage) -> None:
        """Count the request's outputs in ``usage`` until :meth:`end`."""
        self._requests[request_id] = usage

    def end(self, request_id: str) -> None:
        """Stop counting: the request has ended, or was aborted."""
        if usage := self._requests.pop(request_id, None):
            usage.follower = None
            for sequence in usage.sequences.values():
                self._sequences.pop(sequence.name, None)

    def watch(self, processor: Any) -> None:
        """Wrap vLLM's output processor to record every output."""
        process: Callable[..., Any] = processor.process_outputs
        sequences, states = self._sequences, processor.request_states

        def noting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            counted = []
            for output in outputs:
                sequence = sequences.get(output.request_id)
                if (state := states.get(output.request_id)) is None:
                    # The request was aborted while this output was on its way. An ended sequence is not counted.
                    if sequence:
                        sequence.request.output_tokens += len(output.new_token_ids)
                    continue
                if (sequence := sequence or self._begin(state, output)) is None:
                    continue
                counted.append((sequence, output))
                if output.num_nans_in_logits:
                    sequence.request.finite = False
            processed = process(outputs, *args, **kwargs)
            # By now vLLM has cut off the tokens after a stop string.
            for sequence, output in counted:
                tokens = len(output.new_token_ids)
                sequence.output_tokens += tokens
                sequence.request.output_tokens += tokens
                if output.request_id not in states:
                    self._end(sequence)
                elif sequence.output_tokens >= sequence.next_report:
                    sequence.next_report = 2 * sequence.output_tokens
                    _report(sequence, lambda follower, grown: follower.grew(grown.place, grown.output_tokens))
            return processed

        processor.process_outputs = noting

    def _begin(self, state: Any, output: Any) -> SequenceUsage | None:
        """Create the usage of a sequence at its first output; None if its request is not recorded."""
        if (usage := self._requests.get(own_id(state.external_req_id))) is None:
            return None
        place = place_of(state.external_req_id, output.request_id)
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
        _report(sequence, lambda follower, begun: follower.began(begun.place))
        return sequence

    def _end(self, sequence: SequenceUsage) -> None:
        # Later outputs of this sequence come after a stop string.
        self._sequences.pop(sequence.name, None)
        _report(sequence, lambda follower, ended: follower.ended(ended))


def _report(sequence: SequenceUsage, callback: Callable[[Follower, SequenceUsage], None]) -> None:
    if follower := sequence.request.follower:
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
