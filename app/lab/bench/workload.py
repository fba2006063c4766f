"""Workload of many adapters after S-LoRA's (Sheng et al. 2023, arXiv:2311.03285, section 7.1). Pure.

Gaps between arrivals are Gamma distributed with the coefficient of variation ``cv`` (1 is a Poisson process). Lengths
are uniform. The popularity of adapters follows a power law.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Lower bound of lengths in tokens. Lengths are uniform in [SHORTEST, longest).
SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Load:
    """Parameters of the requests of one run.

    Attributes:
        rate: requests per second (R).
        seconds: length of the arrivals (T). There are floor(R * T) requests.
        adapters: number of adapters (n).
        alpha: exponent of the power law. 1 is uniform, smaller is more skewed.
        cv: coefficient of variation of the gaps between arrivals.
        longest: exclusive upper bound of prompt and answer lengths in tokens (L).
    """

    rate: float
    seconds: float
    adapters: int
    alpha: float = 1.0
    cv: float = 1.0
    longest: int = 64

    @property
    def requests(self) -> int:
        return int(self.rate * self.seconds)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Request: seconds after the start, index of the adapter, token ids of the prompt, number of output tokens."""

    at: float
    adapter: int
    prompt: list[int]
    output_tokens: int


def arrivals(
    load: Load, *, vocabulary: int, seed: int | Sequence[int], gaps_seed: int | Sequence[int] | None = None
) -> list[Arrival]:
    """Draw the requests of one run in order, deterministic for the seeds. Token ids are uniform in [0, vocabulary).

    Args:
        gaps_seed: seed of the arrival times, to share them between runs. None draws them with the rest.
    """
    random = np.random.default_rng(seed)
    count = load.requests
    times = np.cumsum(_gaps(random if gaps_seed is None else np.random.default_rng(gaps_seed), load, count))
    # Power(alpha) has the density alpha * x^(alpha - 1) on [0, 1]. Rounding can produce 1 itself.
    adapters = np.minimum(load.adapters * random.power(load.alpha, count), load.adapters - 1).astype(int)
    inputs, outputs = (random.integers(SHORTEST, load.longest, count) for _ in range(2))
    ids = random.integers(0, vocabulary, int(inputs.sum())).tolist()
    return list(_each(times, adapters, inputs, outputs, ids))


def share(adapter: int, adapters: int, alpha: float) -> float:
    """Share of requests of adapter i of n: P(i) = ((i + 1) / n)^alpha - (i / n)^alpha."""
    return float(((adapter + 1) / adapters) ** alpha - (adapter / adapters) ** alpha)


def popular(count: int, adapters: int, alpha: float) -> float:
    """Share of requests of the ``count`` most popular adapters together."""
    shares = sorted((share(adapter, adapters, alpha) for adapter in range(adapters)), reverse=True)
    return sum(shares[:count])


def _gaps(random: np.random.Generator, load: Load, count: int) -> NDArray[np.float64]:
    return random.gamma(1 / load.cv**2, load.cv**2 / load.rate, count)


def _each(
    times: NDArray[np.float64],
    adapters: NDArray[np.int64],
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    ids: list[int],
) -> Iterator[Arrival]:
    start = 0
    for at, adapter, length, output in zip(
        times.tolist(), adapters.tolist(), inputs.tolist(), outputs.tolist(), strict=True
    ):
        yield Arrival(at, adapter, ids[start : start + length], output)
        start += length
