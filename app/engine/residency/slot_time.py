"""For how long a tenant had a slot: its seconds, shared alike by the requests of the tenant that run on it."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Sharers:
    """A tenant's requests of one version: how many, since when, and the seconds that one since the first would have."""

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

    At each moment every version that a tenant's requests run on gives them one second a second, in equal parts, so that
    a tenant's sum is the seconds for which it had slots. Of a shared adapter each tenant that uses it has them all: a
    part would tell it what the others do.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sharers: dict[tuple[str, int], _Sharers] = {}

    def begin(self, tenant: str, version_id: int) -> Callable[[], float]:
        """A request begins to use a version's slot; the returned function ends that, once, and says its seconds."""
        now, key = self._monotonic(), (tenant, version_id)
        sharers = self._sharers.setdefault(key, _Sharers(0, now))
        before = sharers.change(+1, now)

        def end() -> float:
            seconds = sharers.change(-1, self._monotonic()) - before
            if not sharers.count:
                del self._sharers[key]
            return seconds

        return end
