"""Arrivals of a simulation in order, deterministic for their seed."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Index of the base model in arrays of version ids.
BASE = 0

#: Number of arrivals that each stream draws at a time.
_CHUNK = 16_384


class Arrival(NamedTuple):
    """Request.

    Attributes:
        at: seconds since the start.
        tenant: index of the tenant.
        version_id: version of the adapter, ``BASE`` for the base model.
        prompt_tokens, output_tokens: actual numbers of tokens.
        patience_s: seconds after which the client disconnects, served or not. Infinite for most.
        deadline_s: seconds after which a first token is useless. Infinite for most.
    """

    at: float
    tenant: int
    version_id: int
    prompt_tokens: int
    output_tokens: int
    patience_s: float
    deadline_s: float


@dataclass(frozen=True)
class Workload:
    """Workload ``adapters`` of S-LoRA (Sheng et al. 2023, section 7.1) for many tenants, two of them abusive.

    Gaps are Gamma(1 / cv^2, scale cv^2 / rate): cv 1 is Poisson, larger is more bursty. The adapter is
    floor(n * u ** (1 / alpha)) for a uniform u: alpha 1 is uniform popularity, smaller is more skewed. Adapters are
    assigned to tenants by the same law.

    The abusive tenants are:

    - a hostile tenant, which sends far more than its peers for a few adapters;
    - a collector, which owns thousands of adapters and requests all equally often, so that no cache helps.

    Attributes:
        requests: total number of requests.
        adapters: number of adapters, including those of the hostile tenant and the collector.
        tenants: number of tenants without these two.
        rate: requests per second of the ordinary tenants.
        cv: coefficient of variation of the gaps.
        alpha: skew of the adapters' popularity.
        tenant_alpha: skew of the number of adapters per tenant.
        lengths: half-open range of the uniform lengths of prompts and answers, in tokens.
        ranks: ranks of the adapters, round robin.
        base: fraction of requests for the base model.
        impatient: fraction of requests whose clients disconnect, after one second on average.
        urgent: fraction of requests with a deadline.
        deadline_s: deadline of these, in seconds.
        hostile: hostile tenant's rate in multiples of the most active ordinary tenant's, 0 for none.
        collector: collector's rate as a fraction of ``rate``.
    """

    requests: int
    seed: int
    rate: float
    adapters: int = 100_000
    tenants: int = 10_000
    cv: float = 4.0
    alpha: float = 0.3
    tenant_alpha: float = 0.3
    lengths: tuple[int, int] = (8, 64)
    ranks: tuple[int, ...] = (8, 16, 32, 64)
    base: float = 0.1
    impatient: float = 0.02
    urgent: float = 0.05
    deadline_s: float = 6.0
    hostile: float = 10.0
    collector: float = 0.05

    def __post_init__(self) -> None:
        if self.requests < 1 or self.tenants < 1 or self.adapters < 4:
            sizes = f"{self.requests} requests, {self.tenants} tenants and {self.adapters} adapters"
            raise ValueError(f"The workload has {sizes}, but needs at least 1, 1 and 4.")

    @property
    def hostile_tenant(self) -> int:
        return self.tenants

    @property
    def collecting_tenant(self) -> int:
        return self.tenants + 1

    @cached_property
    def owners(self) -> npt.NDArray[np.int64]:
        """Tenant of each version id, 1 to ``adapters``. Index 0 is the base model, which has no tenant."""
        collected, few = max(1, self.adapters // 20), min(8, self.adapters // 4)
        ordinary = self.adapters - collected - few
        draw = np.random.default_rng([self.seed, 0])
        owners = _power_law(draw, ordinary, self.tenants, self.tenant_alpha)
        others = np.repeat([self.hostile_tenant, self.collecting_tenant], [few, collected])
        return np.concatenate([[-1], owners, others])

    @cached_property
    def rates(self) -> npt.NDArray[np.float64]:
        """Requests per second of each tenant."""
        ordinary = np.flatnonzero(self.owners[1:] < self.tenants) + 1
        share = np.diff((np.arange(len(ordinary) + 1) / len(ordinary)) ** self.alpha)
        rates = np.bincount(self.owners[ordinary], weights=self.rate * share, minlength=self.tenants + 2)
        rates[self.hostile_tenant] = self.hostile * rates.max()
        rates[self.collecting_tenant] = self.collector * self.rate
        return rates.astype(np.float64)

    def arrivals(self) -> Iterator[Arrival]:
        """Yield all requests in order of time, deterministic for the workload."""
        streams = [
            self._stream(1, np.flatnonzero(self.owners[1:] < self.tenants) + 1, self.rate, self.alpha),
            self._stream(2, np.flatnonzero(self.owners == self.hostile_tenant), self.rates[self.hostile_tenant], 1.0),
            self._stream(
                3, np.flatnonzero(self.owners == self.collecting_tenant), self.rates[self.collecting_tenant], 1.0
            ),
        ]
        return islice(heapq.merge(*streams), self.requests)

    def _stream(self, number: int, versions: npt.NDArray[np.int64], rate: float, alpha: float) -> Iterator[Arrival]:
        draw, now = np.random.default_rng([self.seed, number]), 0.0
        while rate > 0:
            at = now + np.cumsum(draw.gamma(1 / self.cv**2, self.cv**2 / rate, _CHUNK))
            now = float(at[-1])
            requested = versions[_power_law(draw, _CHUNK, len(versions), alpha)]
            version = np.where(draw.random(_CHUNK) < self.base, BASE, requested)
            patience = np.where(draw.random(_CHUNK) < self.impatient, draw.exponential(1.0, _CHUNK), np.inf)
            deadline = np.where(draw.random(_CHUNK) < self.urgent, self.deadline_s, np.inf)
            prompt, output = draw.integers(*self.lengths, (2, _CHUNK))
            columns = (at, self.owners[requested], version, prompt, output, patience, deadline)
            yield from map(Arrival._make, zip(*(column.tolist() for column in columns), strict=True))


def _power_law(draw: np.random.Generator, count: int, among: int, alpha: float) -> npt.NDArray[np.int64]:
    return (among * draw.random(count) ** (1 / alpha)).astype(np.int64)
