"""Keeps sequences from vLLM's core until they may run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from app.engine.outputs import Place, own_id, place_of
from app.engine.priorities import priority


@dataclass(slots=True)
class _Gated:
    """One request: the priorities of its sequences that may run, and those that vLLM has made and may not."""

    priorities: dict[Place, int] = field(default_factory=dict)
    held: dict[Place, Any] = field(default_factory=dict)


class SequenceGate:
    """A gate in front of the core for requests that were announced; all others pass.

    Args:
        core: vLLM's client of its core.
    """

    def __init__(self, core: Any) -> None:
        self._add: Callable[[Any], Awaitable[None]] = core.add_request_async
        core.add_request_async = self._add_in_turn
        self._requests: dict[str, _Gated] = {}

    def expect(self, request_id: str) -> None:
        """Let no sequence of the request pass before it is let in."""
        self._requests[request_id] = _Gated()

    async def open(self, request_id: str, place: Place, tag: float) -> None:
        """Let a sequence in, now or once vLLM has made it."""
        gated = self._requests[request_id]
        gated.priorities[place] = priority(tag)
        if (sequence := gated.held.pop(place, None)) is not None:
            await self._pass(sequence, gated.priorities[place])

    def forget(self, request_id: str) -> None:
        """The request is over. What was held is dropped: vLLM has been told to abort it."""
        self._requests.pop(request_id, None)

    async def _add_in_turn(self, sequence: Any) -> None:
        gated = self._requests.get(own_id(sequence.external_req_id))
        if gated is None:
            await self._add(sequence)
            return
        place = place_of(sequence.external_req_id, sequence.request_id)
        if place in gated.priorities:
            await self._pass(sequence, gated.priorities[place])
        else:
            gated.held[place] = sequence

    async def _pass(self, sequence: Any, first: int) -> None:
        sequence.priority = first
        await self._add(sequence)
