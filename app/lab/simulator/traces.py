"""Arrival traces of a simulated fleet: Zipf popularity and four arrival processes, fixed by their seed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from app.lab.simulator.workload import BASE, Arrival

_Times = npt.NDArray[np.float64]

#: Half-open range of the uniform lengths of prompts and answers, in tokens.
LENGTHS = (8, 64)

#: Points per second at which a varying rate is integrated.
_GRID_PER_S = 10

#: Diurnal: rate at night relative to the mean, and the share of a cycle by which regions are apart.
_NIGHT, _CYCLES, _REGIONS = 0.3, 2, 4

#: Flash crowd: parts of the trace between which it lasts, and its rate relative to the mean.
_CROWD_FROM, _CROWD_TO, _CROWD = 0.4, 0.6, 0.5

#: MMPP: rates of the calm and the busy state relative to the mean, and their mean durations in seconds.
_CALM, _BUSY, _CALM_S, _BUSY_S = 0.5, 2.0, 20.0, 10.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of many tenants for adapters whose popularity follows Zipf's law.

    Attributes:
        name: one of ``TRACES``.
        rate: mean requests per second, without a flash crowd.
        seconds: length of the arrivals.
        adapters: number of adapters. Each has a tenant.
        skew: exponent of Zipf's law. The popularity of the adapter of rank i is proportional to 1 / i ** skew.
        base: fraction of requests for the base model.
        lengths: half-open range of the uniform lengths of prompts and answers, in tokens.
        ranks: ranks of the adapters, round robin.
    """

    name: str
    rate: float
    seconds: float
    seed: int
    adapters: int = 400
    skew: float = 1.0
    base: float = 0.05
    lengths: tuple[int, int] = LENGTHS
    ranks: tuple[int, ...] = (8, 16, 32, 64)

    def __post_init__(self) -> None:
        if self.name not in TRACES:
            raise ValueError(f"The trace is {self.name!r}. Choose from {', '.join(TRACES)}.")
        if self.adapters < 1 or not (0 < self.rate < inf and 0 < self.seconds < inf):
            raise ValueError("A trace needs 1 adapter or more, and a rate and a length above 0.")

    @property
    def tenants(self) -> int:
        return self.adapters

    def arrivals(self) -> Iterator[Arrival]:
        """Yield all requests in order of time."""
        draw = np.random.default_rng([self.seed, list(TRACES).index(self.name)])
        times, versions = TRACES[self.name](self, draw)
        order = np.argsort(times, kind="stable")
        times, tenants = times[order], versions[order]
        versions = np.where(draw.random(len(times)) < self.base, BASE, tenants)
        prompts, outputs = draw.integers(*self.lengths, (2, len(times)))
        for at, tenant, version_id, prompt, output in zip(
            times.tolist(), tenants.tolist(), versions.tolist(), prompts.tolist(), outputs.tolist(), strict=True
        ):
            yield Arrival(at, tenant - 1, version_id, prompt, output, inf, inf)


_Drawn = tuple[_Times, npt.NDArray[np.int64]]


def _zipf(trace: Trace, draw: np.random.Generator) -> _Drawn:
    """Poisson arrivals at a constant rate."""
    times = _poisson(trace, draw, np.ones(_points(trace)))
    return times, _popular(trace, draw, len(times))


def _diurnal(trace: Trace, draw: np.random.Generator) -> _Drawn:
    """Days and nights of four regions with different adapters, each a quarter of a day after the last."""
    phase: _Times = np.linspace(0, 2 * np.pi * _CYCLES, _points(trace))
    times, versions = [], []
    for region in range(_REGIONS):
        day = 1 - (1 - _NIGHT) * np.cos(phase - 2 * np.pi * region / _REGIONS)
        times.append(_poisson(trace, draw, day / _REGIONS))
        # Each region prefers other adapters: its ranks are shifted.
        ranks = _popular(trace, draw, len(times[-1])) - 1
        versions.append((ranks + region * trace.adapters // _REGIONS) % trace.adapters + 1)
    return np.concatenate(times), np.concatenate(versions)


def _flash_crowd(trace: Trace, draw: np.random.Generator) -> _Drawn:
    """Poisson arrivals, and a crowd that suddenly requests the least popular adapter."""
    times, versions = _zipf(trace, draw)
    place = np.linspace(0, 1, _points(trace))
    crowd = _poisson(trace, draw, _CROWD * ((place >= _CROWD_FROM) & (place < _CROWD_TO)))
    return np.concatenate([times, crowd]), np.concatenate([versions, np.full(len(crowd), trace.adapters)])


def _mmpp(trace: Trace, draw: np.random.Generator) -> _Drawn:
    """Markov-modulated Poisson process with a calm and a busy state of exponential durations."""
    rate = np.empty(_points(trace))
    start, busy = 0, False
    while start < len(rate):
        end = start + max(1, round(draw.exponential(_BUSY_S if busy else _CALM_S) * _GRID_PER_S))
        rate[start:end] = _BUSY if busy else _CALM
        start, busy = end, not busy
    times = _poisson(trace, draw, rate)
    return times, _popular(trace, draw, len(times))


#: Traces by name.
TRACES: Mapping[str, Callable[[Trace, np.random.Generator], _Drawn]] = {
    "zipf": _zipf,
    "diurnal": _diurnal,
    "flash crowd": _flash_crowd,
    "mmpp": _mmpp,
}


def _points(trace: Trace) -> int:
    return 1 + max(1, round(trace.seconds * _GRID_PER_S))


def _poisson(trace: Trace, draw: np.random.Generator, relative: npt.NDArray[np.floating[Any]]) -> _Times:
    """Draw arrivals of a Poisson process whose rate, relative to the mean, varies over the trace."""
    steps = trace.rate * relative[:-1] * trace.seconds / (len(relative) - 1)
    expected = np.concatenate([[0.0], np.cumsum(steps)])
    count = draw.poisson(expected[-1])
    places = np.sort(draw.random(count)) * expected[-1]
    times: _Times = np.interp(places, expected, np.linspace(0, trace.seconds, len(relative)))
    return times


def _popular(trace: Trace, draw: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Draw version ids, 1 for the most popular adapter."""
    shares = np.arange(1, trace.adapters + 1) ** -trace.skew
    return draw.choice(trace.adapters, count, p=shares / shares.sum()) + 1
