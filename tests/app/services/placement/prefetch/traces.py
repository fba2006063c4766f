"""Synthetic traces of requests: (seconds, tenant, version id), from a seed."""

import random
from collections.abc import Iterator

Trace = Iterator[tuple[float, str, int]]

_TENANTS = 20
_RATE = 2.0


def workflows(seed: int, *, requests: int = 4000, noise: float = 0.3) -> Trace:
    """Each tenant goes through one of three chains of four adapters after another; some requests are for any of them.

    Args:
        noise: share of the requests that follow no chain.
    """
    rng, moment = random.Random(seed), 0.0
    places = [(rng.randrange(3), 0) for _ in range(_TENANTS)]
    for _ in range(requests):
        moment += rng.expovariate(_RATE)
        tenant = rng.randrange(_TENANTS)
        if rng.random() < noise:
            number = rng.randrange(12)
        else:
            chain, step = places[tenant]
            number = chain * 4 + step
            places[tenant] = (chain, step + 1) if step < 3 else (rng.randrange(3), 0)
        yield moment, f"tenant-{tenant}", 1 + tenant * 100 + number


def unrelated(seed: int, *, requests: int = 4000, adapters: int = 40) -> Trace:
    """Requests that say nothing of the next one: popular adapters are asked for more often, that is all."""
    rng, moment = random.Random(seed), 0.0
    for _ in range(requests):
        moment += rng.expovariate(_RATE)
        tenant = rng.randrange(_TENANTS)
        yield moment, f"tenant-{tenant}", 1 + tenant * 100 + int(adapters * rng.random() ** 3)
