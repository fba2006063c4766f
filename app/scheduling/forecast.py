"""How long a request that comes now would wait, from what was measured."""

from bisect import bisect_right
from itertools import accumulate
from math import exp

from app.scheduling.queues import Tenant
from app.scheduling.token_counters import TokenCounters

#: Seconds of busy time after which what was measured weighs a third.
_MEMORY_S = 30.0

#: Seconds of busy time below which nothing is said.
_MEASURED_S = 1.0


class Rate:
    """Amount per second while there is more to do than is done.

    It is measured from one event to the next, so that the time from the first request's start to its end, in which
    nothing could end, does not count.
    """

    __slots__ = ("_amount", "_events", "_mark", "_seconds")

    def __init__(self) -> None:
        self._amount = self._events = self._seconds = 0.0
        self._mark: float | None = None

    def add(self, amount: float, now: float) -> None:
        """Something was done."""
        if self._mark is not None:
            passed = now - self._mark
            kept = exp(-passed / _MEMORY_S)
            self._amount = self._amount * kept + amount
            self._events = self._events * kept + 1.0
            self._seconds = self._seconds * kept + passed
        self._mark = now

    def pause(self) -> None:
        """There is not enough to do: the time from here to the next event does not count."""
        self._mark = None

    @property
    def per_second(self) -> float | None:
        """The rate, or None if too little was measured."""
        return self._amount / self._seconds if self._amount and self._seconds >= _MEASURED_S else None

    @property
    def mean(self) -> float:
        """Amount per event."""
        return self._amount / self._events if self._events else 0.0


class Forecast:
    """Work that fair sharing does before a tenant's next request.

    Each other tenant v with counter c, backlog b and weight w is served until it has nothing left or its counter is
    t, where t is the tenant's own counter after its own backlog:

        work(t) = sum over v of min(b, w x max(0, t - c))

    That is piecewise linear in t. Its pieces are kept and made again after as many changes as there are tenants, so
    that a request costs the logarithm of their number.

    Attributes:
        changes_left: how many more may come, requests that come, are admitted or leave; the caller counts them.
    """

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self.changes_left = 0
        self._points: list[float] = []
        #: work(t) = slope x t - offset right of each point.
        self._slopes: list[float] = []
        self._offsets: list[float] = []

    def work_before(self, tenant: Tenant | None, counter: float, weight: float) -> float:
        """Weighted tokens served before the next request of a tenant whose counter is ``counter``."""
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
