"""Fair semaphore: round-robin over tenants, background work last."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """No permit became available before the timeout."""


class Permit:
    """One entry in the semaphore's queue, or in its set of running work.

    Attributes:
        share: share that the work is charged to; None for background work that has no waiter.
        begun: event that is set once the work may run.
    """

    __slots__ = ("begun", "share")

    def __init__(self, share: str | None) -> None:
        self.share = share
        self.begun = asyncio.Event()


class FairSemaphore:
    """Semaphore that grants its permits round-robin over shares, first in, first out within a share.

    One share holds at most half of the permits, so a slow tenant leaves the other half to the rest. Background work
    (``share`` None) forms one more share, served only when no other share can be. All methods must run on one event
    loop.

    Args:
        places: number of permits, i.e. of concurrent pieces of work.
    """

    def __init__(self, places: int) -> None:
        self._places, self._most = places, max(1, places // 2)
        #: Queues of waiting permits by share, in round-robin order.
        self._waiting: OrderedDict[str | None, dict[Permit, None]] = OrderedDict()
        self._running: set[Permit] = set()

    def enter(self, share: str | None) -> Permit:
        """Enqueue a request for a permit. The caller must call :meth:`leave` in the end."""
        turn = Permit(share)
        self._waiting.setdefault(share, {})[turn] = None
        self._advance()
        return turn

    @asynccontextmanager
    async def place(self, share: str, *, patience_s: float) -> AsyncGenerator[None]:
        """Hold a permit for the duration of the block.

        Args:
            share: share that the work is charged to.
            patience_s: longest wait for the permit, in seconds.

        Raises:
            QueueFull: no permit was granted within ``patience_s``.
        """
        turn = self.enter(share)
        try:
            try:
                async with asyncio.timeout(patience_s):
                    await turn.begun.wait()
            except TimeoutError:
                raise QueueFull from None
            yield
        finally:
            self.leave(turn)

    def hurry(self, turn: Permit, share: str) -> None:
        """Promote background work to a share because a caller now waits for it.

        If it has not begun, it moves to the end of that share's queue.
        """
        if turn.share is not None:
            return
        if not turn.begun.is_set():
            self._withdraw(turn)
            self._waiting.setdefault(share, {})[turn] = None
        turn.share = share
        self._advance()

    def leave(self, turn: Permit) -> None:
        """Release the permit, or withdraw it from the queue. Idempotent."""
        if turn in self._running:
            self._running.remove(turn)
        elif turn in self._waiting.get(turn.share, ()):
            self._withdraw(turn)
        self._advance()

    def _withdraw(self, turn: Permit) -> None:
        turns = self._waiting[turn.share]
        del turns[turn]
        if not turns:
            del self._waiting[turn.share]

    def _advance(self) -> None:
        while len(self._running) < self._places and (turn := self._next()) is not None:
            self._withdraw(turn)
            self._running.add(turn)
            turn.begun.set()

    def _next(self) -> Permit | None:
        busy = Counter(turn.share for turn in self._running)
        # At most two shares can hold half of the permits, so this loop ends early.
        for share, turns in self._waiting.items():
            if share is not None and busy[share] < self._most:
                self._waiting.move_to_end(share)
                return next(iter(turns))
        spare = self._waiting.get(None)
        return next(iter(spare)) if spare and busy[None] < self._most else None
