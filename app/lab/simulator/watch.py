"""Check of adapters' waits against the scheduler's bound."""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

#: Tolerance in seconds, since sums of seconds are not exact.
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a copyable version for its slot.

    Attributes:
        since: start in simulated seconds.
        seconds: duration.
        full_s: part of the duration in which a slot was free but the window full.
        rounds: ceil(versions waiting ahead, this one included / slots).
        drain_s: longest drain meanwhile, from the last admission of a version until it left its slot.
        bound_s: rounds x (T + drain).
    """

    version_id: int
    since: float
    seconds: float
    full_s: float
    rounds: int
    drain_s: float
    bound_s: float

    @property
    def beyond_s(self) -> float:
        """Seconds beyond the bound, without the time of a full window."""
        return self.seconds - self.full_s - self.bound_s

    @property
    def used(self) -> float:
        """Fraction of the bound used, without the time of a full window."""
        return (self.seconds - self.full_s) / max(self.bound_s, _ROUNDING_S)


@dataclass(slots=True)
class _Waiter:
    """Version that waits for a slot.

    Attributes:
        place: position in the line: arrival of its oldest waiting request, and a tie-breaking number.
        since: start of its counted wait, NaN while it cannot be copied.
        full_s: total time until then with a free slot and a full window.
        before: number of versions ahead of it then, or placed ahead of it since.
    """

    place: tuple[float, int]
    since: float
    full_s: float
    before: int = 0


class Longest:
    """Maximum of the durations that ended at or after a given time.

    A duration that ended before a longer one is dropped.
    """

    def __init__(self) -> None:
        self._ended: list[float] = []
        self._seconds: list[float] = []

    def add(self, ended: float, seconds: float) -> None:
        while self._seconds and self._seconds[-1] <= seconds:
            self._seconds.pop()
            self._ended.pop()
        self._ended.append(ended)
        self._seconds.append(seconds)

    def since(self, time: float) -> float:
        """Maximum in seconds, 0 if no duration ended since then."""
        place = bisect_left(self._ended, time)
        return self._seconds[place] if place < len(self._seconds) else 0.0


class Watch:
    """Check each version's waits against their bound, from events outside the scheduler.

    The bound of a waiting version is ceil(versions waiting ahead, this one included / slots) x (T + one drain).

    - The wait counts while the version can be copied and holds no slot.
    - Ahead of it are the versions that were copyable before, and those that arrived earlier but are not copyable yet.
    - A version that lost its slot may have been draining, and so closed to its own requests, since its last admission.
      It takes the place in the line that it would have had then.
    - Time with a free slot and a full window does not count. ``delayed`` counts the waits that exceed their bounds
      only because of it.

    Attributes:
        longest: longest wait.
        closest: wait that used the largest part of its bound.
        violations: first waits beyond their bounds.
        violated: number of waits beyond their bounds.
        delayed: number of waits beyond their bounds only because of a full window.
        judged: number of waits that ended with a slot.
    """

    #: Maximum number of violations kept.
    KEPT = 100

    def __init__(self, slots: int, max_age_s: float) -> None:
        self._slots, self._max_age_s = slots, max_age_s
        #: Line of waiting versions' places in order, and the waiter at each place.
        self._line: list[tuple[float, int]] = []
        self._by_place: dict[tuple[float, int], _Waiter] = {}
        #: Places of waiting versions that cannot be copied yet.
        self._cold: list[tuple[float, int]] = []
        self._waiters: dict[int, _Waiter] = {}
        self._running: Counter[int] = Counter()
        self._joined: dict[int, float] = {}
        self._drains = Longest()
        self._numbers = 0
        #: Total of past times with a free slot and a full window, and start of the current one, NaN for none.
        self._full_s, self._full_since = 0.0, math.nan
        self.longest: Wait | None = None
        self.closest: Wait | None = None
        self.violations: list[Wait] = []
        self.violated = self.delayed = self.judged = 0

    @property
    def running(self) -> Collection[int]:
        """Versions with an admitted request."""
        return self._running.keys()

    def window(self, now: float, *, full: bool) -> None:
        """Record whether the window is full. Called after each admission and each end of requests."""
        full = full and len(self._running) < self._slots
        if full is math.isnan(self._full_since):
            self._full_s, self._full_since = self._full_until(now), now if full else math.nan

    def waits(self, version_id: int, now: float, *, available: bool) -> None:
        """Record that a first request of a version waits."""
        if version_id not in self._running:
            self._stand(version_id, now, now if available else math.nan, self._full_until(now))

    def available(self, version_id: int, now: float) -> None:
        """Record that the version can be copied into a slot."""
        waiter = self._waiters.get(version_id)
        if waiter and math.isnan(waiter.since):
            del self._cold[bisect_left(self._cold, waiter.place)]
            waiter.since, waiter.full_s = now, self._full_until(now)
            waiter.before = len(self._line) - 1 - len(self._cold) + bisect_left(self._cold, waiter.place)

    def unavailable(self, version_id: int) -> None:
        """Record that the version can no longer be copied."""
        waiter = self._waiters.get(version_id)
        if waiter and not math.isnan(waiter.since):
            insort(self._cold, waiter.place)
            waiter.since = math.nan

    def gave_up(self, version_id: int, oldest: float | None) -> None:
        """Record that a waiting request of the version ended without admission.

        Args:
            oldest: arrival of the oldest remaining request, None for none.
        """
        waiter = self._waiters.get(version_id)
        if waiter is None or (oldest is not None and oldest <= waiter.place[0]):
            return
        self._leave_line(version_id)
        if oldest is not None:
            # Versions that arrived before this request are now ahead.
            self._stand(version_id, oldest, max(waiter.since, oldest), waiter.full_s)

    def joined(self, version_id: int, now: float) -> None:
        """Record the admission of a request of the version."""
        if waiter := self._waiters.get(version_id):
            self._judge(version_id, waiter, now)
            self._leave_line(version_id)
        self._running[version_id] += 1
        self._joined[version_id] = now

    def left(self, version_id: int, now: float, oldest: float | None) -> None:
        """Record the end of an admitted request of the version.

        Args:
            oldest: arrival of the oldest waiting request of the version, None for none.
        """
        self._running[version_id] -= 1
        if self._running[version_id]:
            return
        del self._running[version_id]
        joined = self._joined.pop(version_id)
        self._drains.add(now, now - joined)
        if oldest is not None:
            self._stand(version_id, max(oldest, joined), now, self._full_until(now))
            self._waiters[version_id].before = len(self._line) - 1

    def _full_until(self, now: float) -> float:
        return self._full_s if math.isnan(self._full_since) else self._full_s + now - self._full_since

    def _stand(self, version_id: int, place: float, since: float, full_s: float) -> None:
        self._numbers += 1
        waiter = self._waiters[version_id] = _Waiter((place, self._numbers), since, full_s)
        waiter.before = len(self._line) - len(self._cold) + bisect_left(self._cold, waiter.place)
        stands = bisect_left(self._line, waiter.place)
        for behind in self._line[stands:]:
            self._by_place[behind].before += 1
        self._line.insert(stands, waiter.place)
        if math.isnan(since):
            insort(self._cold, waiter.place)
        self._by_place[waiter.place] = waiter

    def _leave_line(self, version_id: int) -> None:
        waiter = self._waiters.pop(version_id)
        del self._line[bisect_left(self._line, waiter.place)]
        del self._by_place[waiter.place]
        if math.isnan(waiter.since):
            del self._cold[bisect_left(self._cold, waiter.place)]

    def _judge(self, version_id: int, waiter: _Waiter, now: float) -> None:
        rounds, drain = math.ceil((waiter.before + 1) / self._slots), self._drains.since(waiter.since)
        wait = Wait(
            version_id,
            waiter.since,
            now - waiter.since,
            self._full_until(now) - waiter.full_s,
            rounds,
            drain,
            rounds * (self._max_age_s + drain),
        )
        self.judged += 1
        if self.longest is None or wait.seconds > self.longest.seconds:
            self.longest = wait
        if self.closest is None or wait.used > self.closest.used:
            self.closest = wait
        if wait.beyond_s > _ROUNDING_S:
            self.violated += 1
            if len(self.violations) < self.KEPT:
                self.violations.append(wait)
        elif wait.beyond_s + wait.full_s > _ROUNDING_S:
            self.delayed += 1
