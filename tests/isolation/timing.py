"""Two-sample tests of how long answers take: whoever listens to the clock must not tell two requests apart.

The two kinds are sent in one run, in random order, so that whatever else the machine does falls on both alike; under
the hypothesis that they cost the same every order is as likely as any other, and the rank sum has the distribution of
Mann and Whitney (1947) exactly, however noisy the machine is and however its noise is correlated.
"""

import http.client
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

#: Of each kind. In a run of all tests few, where only a difference that an attacker could use with few requests is
#: found; ``TIMING_SAMPLES=2000 python -m pytest -s tests/isolation/test_timing.py`` prints the fine ones too.
SAMPLES = int(os.environ.get("TIMING_SAMPLES", "400"))

#: How far from a coin's toss a guess may be: of 400 samples each, five standard deviations of what chance gives.
BOUND = 0.1

_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """How well one duration tells of which kind it is.

    Attributes:
        auc: chance that the first kind takes longer than the second, ties by half; 0.5: they are alike.
        p: two-sided, of the rank sum's normal approximation with its correction for ties.
        medians_s: of both kinds.
    """

    auc: float
    p: float
    medians_s: tuple[float, float]


def compared(first: list[float], second: list[float]) -> Verdict:
    """Mann and Whitney's test, https://doi.org/10.1214/aoms/1177730491."""
    n, m = len(first), len(second)
    _, inverse, counts = np.unique([*first, *second], return_inverse=True, return_counts=True)
    # Equal values share the mean of the ranks that they take.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    auc = (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    ties = float((counts.astype(float) ** 3 - counts).sum())
    variance = (n + m + 1 - ties / ((n + m) * (n + m - 1))) / (12 * n * m)
    z = abs(auc - 0.5) / math.sqrt(variance) if variance else 0.0
    return Verdict(auc, math.erfc(z / math.sqrt(2)), (float(np.median(first)), float(np.median(second))))


def told_apart(first: Callable[[], float], second: Callable[[], float], *, samples: int = SAMPLES) -> Verdict:
    """Take so many samples of each kind in random order; each call gives the seconds that it measured."""
    kinds = [True, False] * samples
    random.shuffle(kinds)
    for _ in range(_WARM_UP):
        first(), second()
    taken: dict[bool, list[float]] = {True: [], False: []}
    for is_first in kinds:
        taken[is_first].append(first() if is_first else second())
    return compared(taken[True], taken[False])


def assert_alike(what: str, first: Callable[[], float], second: Callable[[], float]) -> None:
    """Fail if the two kinds can be told apart; what was found is printed, and shown by ``pytest -s``."""
    found = told_apart(first, second)
    words = (
        f"{what}: AUC {found.auc:.4f}, p {found.p:.3g}, medians "
        f"{1e6 * found.medians_s[0]:.0f} and {1e6 * found.medians_s[1]:.0f} us, {SAMPLES} samples each"
    )
    print(f"\n{words}")  # noqa: T201
    if abs(found.auc - 0.5) >= BOUND:
        pytest.fail(f"they can be told apart: {words}")


class Stopwatch:
    """One connection that is kept: what an attacker near the server would use, with little noise of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.connect()

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def seconds(self, method: str, path: str, *, key: str, status: int, body: Mapping[str, Any] | None = None) -> float:
        """From the request's first byte to the end of the answer's first line; its status must be this one.

        Of a stream that is its first event, of all else the whole of it: a listener does not wait for a stream's end,
        which comes no sooner than its record is on the disk, and so hides what was computed meanwhile.
        """
        raw = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        began = time.perf_counter()
        self._connection.request(method, path, raw, headers)
        answer = self._connection.getresponse()
        text = answer.readline()
        seconds = time.perf_counter() - began
        text += answer.read()
        if answer.status != status:
            pytest.fail(f"{method} {path}: found {answer.status} {text[:200]!r}, expected {status}")
        return seconds
