"""Gate that holds sequences back from vLLM until their admission.

vLLM keeps a state for each sequence in this process. So a prompt is handed to vLLM only once the first of its sequences
may run, and vLLM's core gets each sequence on its admission. See docs/decisions/0015-gate-before-vllm.md.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from app.engine.vllm.output_log import Place, own_id, place_of, prompt_of
from app.engine.vllm.scheduler.preemption import priority


@dataclass(slots=True)
class _Gated:
    """One gated request.

    Attributes:
        turns: futures of its prompts, each done once a sequence of the prompt may run.
        priorities: vLLM's priorities of its admitted sequences.
        held: sequences that vLLM has made and that are not admitted yet.
        error: reason why no further sequence will run.
    """

    turns: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    priorities: dict[Place, int] = field(default_factory=dict)
    held: dict[Place, Any] = field(default_factory=dict)
    error: Exception | None = None

    def turn(self, prompt: int) -> asyncio.Future[None]:
        if prompt not in self.turns:
            self.turns[prompt] = asyncio.get_running_loop().create_future()
        return self.turns[prompt]


class SequenceGate:
    """Gate before the engine for announced requests. All other requests pass.

    Args:
        llm: vLLM's engine. Its methods that add requests are wrapped.
    """

    def __init__(self, llm: Any) -> None:
        self._add_prompt: Callable[..., Awaitable[Any]] = llm.add_request
        self._add_sequence: Callable[[Any], Awaitable[None]] = llm.engine_core.add_request_async
        llm.add_request, llm.engine_core.add_request_async = self._prompt_in_turn, self._sequence_in_turn
        self._requests: dict[str, _Gated] = {}

    def expect(self, request_id: str) -> None:
        """Announce a request: hold everything of it back until its admission."""
        self._requests[request_id] = _Gated()

    async def open(self, request_id: str, place: Place, start_tag: float) -> None:
        """Admit a sequence, now or once vLLM has made it."""
        gated = self._requests[request_id]
        gated.priorities[place] = priority(start_tag)
        if not (turn := gated.turn(place[0])).done():
            turn.set_result(None)
        if (sequence := gated.held.pop(place, None)) is not None:
            await self._pass(sequence, gated.priorities[place])

    def fail(self, request_id: str, error: Exception) -> None:
        """Fail all prompts of the request that wait at the gate."""
        if gated := self._requests.get(request_id):
            gated.error = error
            for turn in gated.turns.values():
                if not turn.done():
                    turn.set_exception(error)

    def forget(self, request_id: str) -> None:
        """Forget a request that is over, with its held sequences: vLLM was told to abort it."""
        self._requests.pop(request_id, None)

    async def _prompt_in_turn(self, request_id: str, *args: Any, **options: Any) -> Any:
        if gated := self._requests.get(own_id(request_id)):
            turn = gated.turn(prompt_of(request_id))
            if gated.error and not turn.done():
                raise gated.error
            await turn
        return await self._add_prompt(request_id, *args, **options)

    async def _sequence_in_turn(self, sequence: Any) -> None:
        gated = self._requests.get(own_id(sequence.external_req_id))
        if gated is None:
            await self._add_sequence(sequence)
            return
        place = place_of(sequence.external_req_id, sequence.request_id)
        if place in gated.priorities:
            await self._pass(sequence, gated.priorities[place])
        else:
            gated.held[place] = sequence

    async def _pass(self, sequence: Any, first: int) -> None:
        sequence.priority = first
        await self._add_sequence(sequence)
