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
        granted: event that is set once the work may run.
    """

    __slots__ = ("granted", "share")

    def __init__(self, share: str | None) -> None:
        self.share = share
        self.granted = asyncio.Event()


class FairSemaphore:
    """Semaphore that grants its permits round-robin over shares, first in, first out within a share.

    One share holds at most half of the permits, so a slow tenant leaves the other half to the rest. Background work
    (``share`` None) forms one more share, served only when no other share can be. All methods must run on one event
    loop.

    Args:
        permits: number of permits, i.e. of concurrent pieces of work.
    """

    def __init__(self, permits: int) -> None:
        self._permits, self._most = permits, max(1, permits // 2)
        #: Queues of waiting permits by share, in round-robin order.
        self._waiting: OrderedDict[str | None, dict[Permit, None]] = OrderedDict()
        self._running: set[Permit] = set()

    def enter(self, share: str | None) -> Permit:
        """Enqueue a request for a permit. The caller must call :meth:`leave` in the end."""
        permit = Permit(share)
        self._waiting.setdefault(share, {})[permit] = None
        self._advance()
        return permit

    @asynccontextmanager
    async def permit(self, share: str, *, patience_s: float) -> AsyncGenerator[None]:
        """Hold a permit for the duration of the block.

        Args:
            share: share that the work is charged to.
            patience_s: longest wait for the permit, in seconds.

        Raises:
            QueueFull: no permit was granted within ``patience_s``.
        """
        permit = self.enter(share)
        try:
            try:
                async with asyncio.timeout(patience_s):
                    await permit.granted.wait()
            except TimeoutError:
                raise QueueFull from None
            yield
        finally:
            self.leave(permit)

    def promote(self, permit: Permit, share: str) -> None:
        """Promote background work to a share because a caller now waits for it.

        If it does not run yet, it moves to the end of that share's queue.
        """
        if permit.share is not None:
            return
        if not permit.granted.is_set():
            self._withdraw(permit)
            self._waiting.setdefault(share, {})[permit] = None
        permit.share = share
        self._advance()

    def leave(self, permit: Permit) -> None:
        """Release the permit, or withdraw it from the queue. Idempotent."""
        if permit in self._running:
            self._running.remove(permit)
        elif permit in self._waiting.get(permit.share, ()):
            self._withdraw(permit)
        self._advance()

    def _withdraw(self, permit: Permit) -> None:
        permits = self._waiting[permit.share]
        del permits[permit]
        if not permits:
            del self._waiting[permit.share]

    def _advance(self) -> None:
        while len(self._running) < self._permits and (permit := self._next()) is not None:
            self._withdraw(permit)
            self._running.add(permit)
            permit.granted.set()

    def _next(self) -> Permit | None:
        busy = Counter(permit.share for permit in self._running)
        # At most two shares can hold half of the permits, so this loop ends early.
        for share, permits in self._waiting.items():
            if share is not None and busy[share] < self._most:
                self._waiting.move_to_end(share)
                return next(iter(permits))
        spare = self._waiting.get(None)
        return next(iter(spare)) if spare and busy[None] < self._most else None
