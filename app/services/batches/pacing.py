"""Pacing of background work on the event loop."""

import asyncio
import time
from collections.abc import Callable

#: Longest work between two pauses, and longest pause, in seconds.
WORK_S, PAUSE_S = 0.004, 0.01


class Pace:
    """Pauses after some work, for as long as the work took: requests get half of the event loop, or more.

    Args:
        monotonic: clock in seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._since = monotonic, monotonic()

    async def step(self) -> None:
        """Pause if it is time. Call it after each small piece of work."""
        worked = self._monotonic() - self._since
        if worked >= WORK_S:
            await asyncio.sleep(min(worked, PAUSE_S))
            self._since = self._monotonic()
