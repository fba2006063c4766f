"""Fairness between backlogged tenants: Jain's index over spans of the simulation."""

from collections import Counter
from collections.abc import Callable, Iterable

from app.scheduling.token_counters import cost_of

#: Length of a span in seconds. It is long against one request, whose tokens all count at its end.
_SPAN_S = 20.0


def jain(values: Iterable[float]) -> float:
    """Jain's index (sum x)^2 / (n * sum x^2): 1 if all are equal, 1/n if one has all (Jain et al. 1984)."""
    numbers = list(values)
    squares = sum(number * number for number in numbers)
    return sum(numbers) ** 2 / (len(numbers) * squares) if squares else 1.0


class Fairness:
    """Served tokens per span, for tenants that had a backlog throughout the span.

    Tokens count with the scheduler's weights. A request counts as waiting if the base model or an adapter in memory
    could serve it: loads are not the scheduler's work. If more such adapters than slots exist, they take turns, and
    tenants with many adapters get more turns. The index shows the extent of that.

    Args:
        weight: share of a tenant relative to others.
        backlog: minimum number of waiting requests. A tenant with fewer could not use more than it gets.

    Attributes:
        indexes: Jain's index of each span with at least two such tenants.
    """

    def __init__(self, weight: Callable[[int], float], *, span_s: float = _SPAN_S, backlog: int = 8) -> None:
        self._weight, self._span_s, self._ends, self._backlog = weight, span_s, span_s, backlog
        self._waiting: Counter[int] = Counter()
        self._backlogged: set[int] = set()
        self._served: dict[int, float] = {}
        self.indexes: list[float] = []

    def waits(self, tenant: int) -> None:
        self._waiting[tenant] += 1

    def waits_no_more(self, tenant: int) -> None:
        self._waiting[tenant] -= 1
        if self._waiting[tenant] < self._backlog:
            self._backlogged.discard(tenant)
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def served(self, tenant: int, prompt_tokens: int, output_tokens: int) -> None:
        self._served[tenant] = self._served.get(tenant, 0.0) + cost_of(prompt_tokens, output_tokens)

    def passed(self, now: float) -> None:
        """Close the span if it has ended."""
        if now < self._ends:
            return
        if len(self._backlogged) > 1:
            self.indexes.append(
                jain(self._served.get(tenant, 0.0) / self._weight(tenant) for tenant in self._backlogged)
            )
        self._backlogged = {tenant for tenant, waiting in self._waiting.items() if waiting >= self._backlog}
        self._served.clear()
        self._ends = now + self._span_s
