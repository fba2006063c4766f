"""Waiting for a slot: the asyncio side of :class:`adapters.residency.SlotGate`."""

import asyncio
import time
from collections.abc import Iterable

from adapters.residency import SlotGate
from app.errors import EngineUnavailable


class SlotQueue:
    """Lets requests of at most ``slots`` distinct adapters into the engine."""

    def __init__(self, slots: int) -> None:
        self._gate = SlotGate(slots)
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._closed = False

    async def enter(self, request_id: str, version_id: int) -> None:
        """Return when the request may run; end it with :meth:`leave`, also after an error here.

        Raises:
            EngineUnavailable: the queue was closed.
        """
        if self._closed:
            raise _restarting()
        if self._gate.enter(request_id, version_id, time.monotonic()):
            return
        turn = self._turns[request_id] = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            self._turns.pop(request_id, None)

    def leave(self, request_id: str) -> None:
        """End a request, whether it ran, failed or gave up waiting."""
        self._let_in(self._gate.leave(request_id, time.monotonic()))

    def pin(self, version_id: int) -> None:
        """Keep nobody of the version waiting, as long as a request of it holds its slot."""
        self._let_in(self._gate.pin(version_id, time.monotonic()))

    def unpin(self, version_id: int) -> None:
        """Make the version one like all others."""
        self._gate.unpin(version_id)

    def close(self) -> None:
        """Refuse all who wait and all who come."""
        self._closed = True
        for turn in self._turns.values():
            if not turn.done():
                turn.set_exception(_restarting())

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._turns)

    def _let_in(self, admitted: Iterable[str]) -> None:
        for request_id in admitted:
            # A request admitted as it is being cancelled has no turn to take: its own `leave` follows.
            if (turn := self._turns.get(request_id)) and not turn.done():
                turn.set_result(None)


def _restarting() -> EngineUnavailable:
    return EngineUnavailable("the engine is being started again", retry_after=15)
