"""What the engine's steps say of each request and no answer carries: NaN among its logits, tokens as they come."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_REMEMBERED = 10_000


@dataclass(slots=True)
class Usage:
    """Tokens of one request so far, all its prompts and sequences together; when the first came, monotonic."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_at: float | None = None
    prompts: set[str] = field(default_factory=set)
    sequences: list[str] = field(default_factory=list)
    ended: int = 0


class OutputLog:
    """Reads the outputs of every step where they arrive, in this process, before the answers that they belong to end.

    vLLM counts NaN in its sampler (``VLLM_COMPUTE_NANS_IN_LOGITS``) and reports them with every step's outputs, but
    puts them into no answer. Request ids whose logits held NaN are remembered, the newest 10,000 of them.
    """

    def __init__(self) -> None:
        self._not_finite: OrderedDict[str, None] = OrderedDict()
        self._usages: dict[str, Usage] = {}
        self._sequences: dict[str, Usage] = {}
        self._awaited: dict[str, tuple[int, Callable[[], None]]] = {}
        self._unread: dict[str, tuple[int, Callable[[], None]]] = {}

    def when_ended(self, request_id: str, sequences: int, then: Callable[[], None]) -> None:
        """Call ``then`` once so many sequences of the request have ended in the engine, whoever has read what of them.

        Nothing is called for a request whose usage was taken before.
        """
        self._awaited[request_id] = (sequences, then)

    def when_read(self, request_id: str, prompts: int, then: Callable[[], None]) -> None:
        """Call ``then`` once so many prompts of the request have had a token; as :meth:`when_ended`."""
        self._unread[request_id] = (prompts, then)

    def was_finite(self, request_id: str) -> bool:
        return request_id not in self._not_finite

    def unended(self, request_id: str) -> list[str]:
        """The engine's names of the request's sequences that have had a token and have not ended."""
        usage = self._usages.get(request_id)
        return [sequence for sequence in usage.sequences if sequence in self._sequences] if usage else []

    def add(self, request_id: str, tokens: int) -> None:
        """Count tokens that the engine has made and never told of."""
        if usage := self._usages.get(request_id):
            usage.output_tokens += tokens

    def take(self, request_id: str) -> Usage | None:
        """The tokens of a request that has ended or is given up, if it had any; nothing of it is kept."""
        self._awaited.pop(request_id, None)
        self._unread.pop(request_id, None)
        usage = self._usages.pop(request_id, None)
        for sequence in usage.sequences if usage else ():
            self._sequences.pop(sequence, None)
        return usage

    def watch(self, processor: Any) -> None:
        """Read every output that reaches vLLM's output processor."""
        process: Callable[..., Any] = processor.process_outputs
        sequences = self._sequences

        states = processor.request_states

        def noting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            counted = []
            for output in outputs:
                usage = sequences.get(output.request_id)
                if (state := states.get(output.request_id)) is None:
                    # Given up while this was on its way, if it has not ended.
                    if usage:
                        usage.output_tokens += len(output.new_token_ids)
                    continue
                usage = usage or self._begin(state, output)
                counted.append((usage, output))
                if output.num_nans_in_logits:
                    self._note(state.external_req_id)
            processed = process(outputs, *args, **kwargs)
            # Now tokens behind a stop string are cut off.
            for usage, output in counted:
                usage.output_tokens += len(output.new_token_ids)
                if output.request_id not in states:
                    self._end(usage, output.request_id)
            return processed

        processor.process_outputs = noting

    def _begin(self, state: Any, output: Any) -> Usage:
        """The usage of a sequence that is seen for the first time."""
        request_id = own_id(state.external_req_id)
        usage = self._usages.setdefault(request_id, Usage())
        usage.sequences.append(output.request_id)
        self._sequences[output.request_id] = usage
        if usage.first_at is None:
            usage.first_at = time.monotonic()
        if state.external_req_id not in usage.prompts:
            usage.prompts.add(state.external_req_id)
            usage.prompt_tokens += state.prompt_len
            if output.prefill_stats:
                usage.cached_tokens += output.prefill_stats.num_cached_tokens
            self._call_after(self._unread, request_id, len(usage.prompts))
        return usage

    def _end(self, usage: Usage, sequence: str) -> None:
        usage.ended += 1
        # What comes of it from here on is behind a stop string.
        self._sequences.pop(sequence, None)
        self._call_after(self._awaited, own_id(next(iter(usage.prompts))), usage.ended)

    def _call_after(self, awaited: dict[str, tuple[int, Callable[[], None]]], request_id: str, count: int) -> None:
        """Call what waits for so many of a request, once."""
        wanted, then = awaited.get(request_id, (0, None))
        if then and count == wanted:
            del awaited[request_id]
            # Not from within vLLM's own loop, which would end with an error here.
            asyncio.get_running_loop().call_soon(then)

    def _note(self, external_id: str) -> None:
        self._not_finite[own_id(external_id)] = None
        while len(self._not_finite) > _REMEMBERED:
            self._not_finite.popitem(last=False)


def own_id(external_id: str) -> str:
    """The request's id as Tenora made it: ``cmpl-<id>-<prompt>`` and ``chatcmpl-<id>`` are vLLM's."""
    kind, _, rest = external_id.partition("-")
    return rest.rpartition("-")[0] if kind == "cmpl" else rest
