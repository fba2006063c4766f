"""Whose fetch, or upload, is next: tenants take turns, and what nobody waits for comes last."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """None came free in time."""


class Permit:
    """One piece of work's place in the queue, or among those that run.

    Attributes:
        share: whose part of the places it uses; None: it is only spare work, which nobody waits for.
        begun: set once it may run.
    """

    __slots__ = ("begun", "share")

    def __init__(self, share: str | None) -> None:
        self.share = share
        self.begun = asyncio.Event()


class FairSemaphore:
    """The places for work of one kind, given out share by share in rotation, within a share in the order of arrival.

    One share has at most half of the places, so that one tenant whose work takes long leaves the other half to
    everyone else. Spare work counts as a share of its own that is served when no other can be. All of it belongs to
    one event loop.

    Args:
        places: pieces of work at the same time.
    """

    def __init__(self, places: int) -> None:
        self._places, self._most = places, max(1, places // 2)
        #: Shares with somebody waiting, the next one to be served first.
        self._waiting: OrderedDict[str | None, dict[Permit, None]] = OrderedDict()
        self._running: set[Permit] = set()

    def enter(self, share: str | None) -> Permit:
        """Queue up; whoever enters leaves."""
        turn = Permit(share)
        self._waiting.setdefault(share, {})[turn] = None
        self._advance()
        return turn

    @asynccontextmanager
    async def place(self, share: str, *, patience_s: float) -> AsyncGenerator[None]:
        """A place for as long as the block lasts.

        Raises:
            NoPlace: none came free within so many seconds.
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
        """Somebody waits for what was spare work: it queues up anew with that share, if it has not begun."""
        if turn.share is not None:
            return
        if not turn.begun.is_set():
            self._withdraw(turn)
            self._waiting.setdefault(share, {})[turn] = None
        turn.share = share
        self._advance()

    def leave(self, turn: Permit) -> None:
        """The work is over, or given up; a second call does nothing."""
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
        # No more than two shares can have half of the places, so this ends early.
        for share, turns in self._waiting.items():
            if share is not None and busy[share] < self._most:
                self._waiting.move_to_end(share)
                return next(iter(turns))
        spare = self._waiting.get(None)
        return next(iter(spare)) if spare and busy[None] < self._most else None
