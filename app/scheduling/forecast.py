"""Forecast of the wait of a new request, from measured service rates."""

from bisect import bisect_right
from itertools import accumulate
from math import exp

from app.scheduling.queues import Tenant
from app.scheduling.token_counters import TokenCounters

#: Time constant of the exponential decay, in seconds of busy time.
_MEMORY_S = 30.0

#: Minimum of measured busy time in seconds; below it there is no estimate.
_MEASURED_S = 1.0


class Rate:
    """Exponentially decayed rate: amount per second of busy time.

    Time counts from one event to the next. The time from the first start to the first end does not count, because
    nothing could end in it.
    """

    __slots__ = ("_amount", "_events", "_mark", "_seconds")

    def __init__(self) -> None:
        self._amount = self._events = self._seconds = 0.0
        self._mark: float | None = None

    def add(self, amount: float, now: float) -> None:
        """Record an amount of finished work."""
        if self._mark is not None:
            passed = now - self._mark
            kept = exp(-passed / _MEMORY_S)
            self._amount = self._amount * kept + amount
            self._events = self._events * kept + 1.0
            self._seconds = self._seconds * kept + passed
        self._mark = now

    def pause(self) -> None:
        """Stop the clock until the next event, because there is not enough work."""
        self._mark = None

    @property
    def per_second(self) -> float | None:
        """Amount per second; None if too little was measured."""
        return self._amount / self._seconds if self._amount and self._seconds >= _MEASURED_S else None

    @property
    def mean(self) -> float:
        """Mean amount per event."""
        return self._amount / self._events if self._events else 0.0


class Forecast:
    """Work that fair sharing serves before a tenant's next request.

    Each other tenant v has a counter c, a backlog b and a weight w. It is served until its backlog is empty or its
    counter is t. There t is the tenant's own counter after its own backlog:

        work(t) = sum over v of min(b, w x max(0, t - c))

    The function is piecewise linear in t. Its pieces are cached and rebuilt after as many changes as the function has
    breakpoints, two for each competing tenant. An estimate therefore costs the logarithm of the number of tenants.

    Attributes:
        changes_left: changes until the rebuild: arrivals, admissions and departures, which the caller counts.
    """

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self.changes_left = 0
        self._points: list[float] = []
        #: work(t) = slope x t - offset to the right of each point.
        self._slopes: list[float] = []
        self._offsets: list[float] = []

    def work_before(self, tenant: Tenant | None, counter: float, weight: float) -> float:
        """Return the weighted tokens served before the next request of a tenant with this counter."""
        if self.changes_left <= 0:
            self._build()
        own = self._counters.backlog(tenant) if tenant else 0.0
        target = counter + own / weight
        index = bisect_right(self._points, target) - 1
        return max(own, self._slopes[index] * target - self._offsets[index]) if index >= 0 else own

    def _build(self) -> None:
        bends: list[tuple[float, float]] = []
        for tenant in self._counters.competing():
            bends.append((tenant.counter, tenant.weight))
            bends.append((tenant.counter + self._counters.backlog(tenant) / tenant.weight, -tenant.weight))
        bends.sort()
        self._points = [point for point, _ in bends]
        self._slopes = list(accumulate(slope for _, slope in bends))
        self._offsets = list(accumulate(point * slope for point, slope in bends))
        self.changes_left = len(bends)
