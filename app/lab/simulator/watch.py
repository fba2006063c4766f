"""Whether any adapter waited longer than the scheduler promises."""

import math
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

#: Sums of seconds are not exact.
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a version that could be copied waited for its slot.

    Attributes:
        since: when it began to wait, in seconds of the simulation.
        seconds: how long it was.
        full_s: how much of it a slot was free, but the window full.
        rounds: ceil(versions waiting before it and itself / slots).
        drain_s: the longest drain meanwhile: from the last request that a version was given until it left its slot.
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
        """By how much it exceeds its bound, the time of a full window aside."""
        return self.seconds - self.full_s - self.bound_s

    @property
    def used(self) -> float:
        """The part of its bound that it took, the time of a full window aside."""
        return (self.seconds - self.full_s) / max(self.bound_s, _ROUNDING_S)


@dataclass(slots=True)
class _Waiter:
    """A version that waits for a slot.

    Attributes:
        place: in the line: since when its oldest request waits, and a number.
        since: from when its wait counts; NaN: it cannot be copied yet.
        full_s: how long a slot had been free and the window full until then.
        before: versions that stood before it then, or came to stand there since.
    """

    place: tuple[float, int]
    since: float
    full_s: float
    before: int = 0


class Longest:
    """The longest of those durations that ended at a given time or later.

    Of what ended earlier than a longer one, nothing need be kept.
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
        """Seconds; 0 if none ended."""
        place = bisect_left(self._ended, time)
        return self._seconds[place] if place < len(self._seconds) else 0.0


class Watch:
    """The waits of all versions, each against its bound, from what is seen outside of the scheduler.

    The bound is that of one waiting version: ceil(versions waiting before it and itself / slots) x (T + one drain).
    It counts from when the version waits and can be copied; while it holds a slot it waits for none. Before it waited
    those who could be copied already, and those who cannot yet but came earlier. Whoever loses its slot to others may
    have been closed to its own requests since it was last joined, so that it stands where it would have stood then. A
    free slot is no help while the window is full: that time is not counted, and how many waits it made longer than
    their bounds is.

    Attributes:
        longest: the longest wait.
        closest: the wait that used most of its bound.
        violations: waits beyond their bounds, the first of them.
        violated: how many there were.
        delayed: waits beyond their bounds for a full window only.
        judged: how often a version waited and got its slot.
    """

    #: Violations that are kept.
    KEPT = 100

    def __init__(self, slots: int, max_age_s: float) -> None:
        self._slots, self._max_age_s = slots, max_age_s
        #: The places of those that wait, in order, and who stands there.
        self._line: list[tuple[float, int]] = []
        self._standing: dict[tuple[float, int], _Waiter] = {}
        #: The places of those of them that cannot be copied yet.
        self._cold: list[tuple[float, int]] = []
        self._waiters: dict[int, _Waiter] = {}
        self._running: Counter[int] = Counter()
        self._joined: dict[int, float] = {}
        self._drains = Longest()
        self._numbers = 0
        #: For how long a slot was free and the window full until it last was, and since when it is; NaN: it is not.
        self._full_s, self._full_since = 0.0, math.nan
        self.longest: Wait | None = None
        self.closest: Wait | None = None
        self.violations: list[Wait] = []
        self.violated = self.delayed = self.judged = 0

    def window(self, now: float, *, full: bool) -> None:
        """Whether the window is full from now on; told after each time that requests were let in or ended."""
        full = full and len(self._running) < self._slots
        if full is math.isnan(self._full_since):
            self._full_s, self._full_since = self._full_until(now), now if full else math.nan

    def waits(self, version_id: int, now: float, *, available: bool) -> None:
        """A first request of a version waits."""
        if version_id not in self._running:
            self._stand(version_id, now, now if available else math.nan, self._full_until(now))

    def available(self, version_id: int, now: float) -> None:
        """The version can be copied into a slot."""
        waiter = self._waiters.get(version_id)
        if waiter and math.isnan(waiter.since):
            del self._cold[bisect_left(self._cold, waiter.place)]
            waiter.since, waiter.full_s = now, self._full_until(now)
            waiter.before = len(self._line) - 1 - len(self._cold) + bisect_left(self._cold, waiter.place)

    def unavailable(self, version_id: int) -> None:
        """It no longer can."""
        waiter = self._waiters.get(version_id)
        if waiter and not math.isnan(waiter.since):
            insort(self._cold, waiter.place)
            waiter.since = math.nan

    def gave_up(self, version_id: int, oldest: float | None) -> None:
        """A request of the version waits no more, and was not let in.

        Args:
            oldest: since when the oldest of those left waits; None: no other does.
        """
        waiter = self._waiters.get(version_id)
        if waiter is None or (oldest is not None and oldest <= waiter.place[0]):
            return
        self._leave_line(version_id)
        if oldest is not None:
            # Those who came before this request now stand before the version.
            self._stand(version_id, oldest, max(waiter.since, oldest), waiter.full_s)

    def joined(self, version_id: int, now: float) -> None:
        """A request of the version was let in."""
        if waiter := self._waiters.get(version_id):
            self._judge(version_id, waiter, now)
            self._leave_line(version_id)
        self._running[version_id] += 1
        self._joined[version_id] = now

    def left(self, version_id: int, now: float, oldest: float | None) -> None:
        """A request of the version that was let in has ended.

        Args:
            oldest: since when the oldest request of the version waits; None: none does.
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
            self._standing[behind].before += 1
        self._line.insert(stands, waiter.place)
        if math.isnan(since):
            insort(self._cold, waiter.place)
        self._standing[waiter.place] = waiter

    def _leave_line(self, version_id: int) -> None:
        waiter = self._waiters.pop(version_id)
        del self._line[bisect_left(self._line, waiter.place)]
        del self._standing[waiter.place]
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
