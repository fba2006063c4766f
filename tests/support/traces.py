"""Synthetic request traces from a seed: (seconds, tenant, version id)."""

import random
from collections.abc import Iterator

Trace = Iterator[tuple[float, str, int]]

_TENANTS = 20
_RATE = 2.0


def workflows(seed: int, *, requests: int = 4000, noise: float = 0.3) -> Trace:
    """Chained requests: each tenant repeatedly picks one of three chains of four adapters and walks through it.

    Args:
        noise: share of the requests that use a random adapter instead of the chain.
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
    """Independent requests: popular adapters are requested more often, and no request predicts the next one."""
    rng, moment = random.Random(seed), 0.0
    for _ in range(requests):
        moment += rng.expovariate(_RATE)
        tenant = rng.randrange(_TENANTS)
        yield moment, f"tenant-{tenant}", 1 + tenant * 100 + int(adapters * rng.random() ** 3)
