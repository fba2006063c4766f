"""Whose a slot was, and for how long: the seconds of a slot, shared alike by the requests that run on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Sharers:
    """Requests of one version: how many there are, since when, and the seconds that one since the first would have."""

    count: int
    since: float
    seconds: float = 0.0

    def change(self, by: int, now: float) -> float:
        """Let requests come or go; returns the seconds until now."""
        if self.count:
            self.seconds += (now - self.since) / self.count
        self.count, self.since = self.count + by, now
        return self.seconds


class SlotTime:
    """The slot-seconds of requests.

    At each moment every version that requests run on gives them one second a second, in equal parts, so that the sums
    over tenants are the seconds for which slots were in use, and sharing an adapter's slot costs nobody more.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._versions: dict[int, _Sharers] = {}

    def begin(self, version_id: int) -> Callable[[], float]:
        """A request begins to use a version's slot; the returned function ends that, once, and says its seconds."""
        now = self._monotonic()
        sharers = self._versions.setdefault(version_id, _Sharers(0, now))
        before = sharers.change(+1, now)

        def end() -> float:
            seconds = sharers.change(-1, self._monotonic()) - before
            if not sharers.count:
                del self._versions[version_id]
            return seconds

        return end
