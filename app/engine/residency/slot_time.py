"""Slot time accounting: a tenant's slot-seconds, split evenly among its requests that run on the slot."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Sharers:
    """Requests of one tenant that share a version's slot.

    Attributes:
        count: number of these requests.
        since: time of the last change of ``count``.
        seconds: slot-seconds of a request that has run since the first one began.
    """

    count: int
    since: float
    seconds: float = 0.0

    def change(self, by: int, now: float) -> float:
        """Add or remove requests. Return ``seconds`` up to now."""
        if self.count:
            self.seconds += (now - self.since) / self.count
        self.count, self.since = self.count + by, now
        return self.seconds


class SlotTime:
    """Slot-seconds of requests.

    Each version that a tenant's requests run on gives them one second per second, in equal parts. So the sum over a
    tenant's requests is the time for which it had slots. Each tenant that uses a shared adapter gets all of its
    seconds: a split would reveal the activity of the others.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sharers: dict[tuple[str, int], _Sharers] = {}

    def begin(self, tenant: str, version_id: int) -> Callable[[], float]:
        """Start to count slot time for a request. The returned function stops it, once, and returns the seconds."""
        now, key = self._monotonic(), (tenant, version_id)
        sharers = self._sharers.setdefault(key, _Sharers(0, now))
        before = sharers.change(+1, now)

        def end() -> float:
            seconds = sharers.change(-1, self._monotonic()) - before
            if not sharers.count:
                del self._sharers[key]
            return seconds

        return end
