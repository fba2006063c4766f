"""How evenly backlogged tenants are served: Jain's index over spans of the simulation."""

from collections import Counter
from collections.abc import Callable, Iterable

from app.scheduling.token_counters import cost_of

#: Long against the run of one request, whose tokens all count when it ends.
_SPAN_S = 20.0


def jain(values: Iterable[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything (Jain et al. 1984)."""
    numbers = list(values)
    squares = sum(number * number for number in numbers)
    return sum(numbers) ** 2 / (len(numbers) * squares) if squares else 1.0


class Fairness:
    """Served tokens of the tenants that had requests waiting all through a span, per span.

    Tokens count as the scheduler counts them. A request waits if the base model or an adapter in memory could serve
    it: loads are not the scheduler's. Where there are more such adapters than slots, they take turns, and tenants with
    many get more of them: then the index says how far that goes.

    Args:
        weight: a tenant's share against others'.
        backlog: fewest requests that always wait; a tenant with fewer could not use more than it gets.

    Attributes:
        indexes: Jain's index of each span with two or more such tenants.
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
        """Close the span that has ended."""
        if now < self._ends:
            return
        if len(self._backlogged) > 1:
            self.indexes.append(
                jain(self._served.get(tenant, 0.0) / self._weight(tenant) for tenant in self._backlogged)
            )
        self._backlogged = {tenant for tenant, waiting in self._waiting.items() if waiting >= self._backlog}
        self._served.clear()
        self._ends = now + self._span_s
