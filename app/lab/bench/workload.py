"""The workload of many adapters, after S-LoRA's (Sheng et al. 2023, arXiv:2311.03285, section 7.1). Pure.

Arrivals have Gamma gaps with the coefficient of variation ``cv`` (1 is a Poisson process); lengths are uniform; how
often an adapter is asked for follows a power law.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Tokens: lengths are uniform in [SHORTEST, longest).
SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What the requests of one run are like.

    Attributes:
        rate: requests per second (R).
        seconds: for which they arrive (T); there are floor(R * T).
        adapters: number of adapters (n).
        alpha: of the power law: 1 is uniform, smaller is more skewed.
        cv: coefficient of variation of the gaps between arrivals.
        longest: prompts and answers are shorter than so many tokens (L).
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
    """One request: seconds after the start, its adapter's index, its prompt's token ids, the answer's tokens."""

    at: float
    adapter: int
    prompt: list[int]
    output_tokens: int


def arrivals(
    load: Load, *, vocabulary: int, seed: int | Sequence[int], gaps_seed: int | Sequence[int] | None = None
) -> list[Arrival]:
    """The requests of one run in order, the same for the same seeds; token ids are uniform in [0, vocabulary).

    Args:
        gaps_seed: of the times between them, where several runs are to be compared; None: drawn with the rest.
    """
    random = np.random.default_rng(seed)
    count = load.requests
    times = np.cumsum(_gaps(random if gaps_seed is None else np.random.default_rng(gaps_seed), load, count))
    # Power(alpha) has the density alpha * x^(alpha - 1) on [0, 1]; 1 itself can come out by rounding.
    adapters = np.minimum(load.adapters * random.power(load.alpha, count), load.adapters - 1).astype(int)
    inputs, outputs = (random.integers(SHORTEST, load.longest, count) for _ in range(2))
    ids = random.integers(0, vocabulary, int(inputs.sum())).tolist()
    return list(_each(times, adapters, inputs, outputs, ids))


def share(adapter: int, adapters: int, alpha: float) -> float:
    """P(i) = ((i + 1) / n)^alpha - (i / n)^alpha, the share of requests that adapter i of n gets."""
    return float(((adapter + 1) / adapters) ** alpha - (adapter / adapters) ** alpha)


def popular(count: int, adapters: int, alpha: float) -> float:
    """The share of requests that the ``count`` most popular adapters get together."""
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
