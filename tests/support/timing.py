"""Two-sample tests of response times: timing must not distinguish two kinds of requests.

Both kinds are sent in one run, in random order, so that other load on the machine affects both alike. Under the
hypothesis of equal cost, every order is equally likely. The rank sum then has exactly the distribution of Mann and
Whitney (1947), however noisy the machine is and however its noise is correlated.
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

#: Samples of each kind. The default detects only differences that an attacker could use with few requests.
#: ``TIMING_SAMPLES=2000 python -m pytest -s tests/isolation/test_timing.py`` prints the fine ones too.
SAMPLES = int(os.environ.get("TIMING_SAMPLES", "400"))

#: Allowed distance from a random guess: with 400 samples of each kind, five standard deviations of chance.
BOUND = 0.1

_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """Separability of the two kinds by one duration.

    Attributes:
        auc: probability that the first kind takes longer than the second, ties counted half; 0.5: they are alike.
        p: two-sided, from the normal approximation of the rank sum with tie correction.
        medians_s: medians of both kinds.
    """

    auc: float
    p: float
    medians_s: tuple[float, float]


def compared(first: list[float], second: list[float]) -> Verdict:
    """Mann-Whitney U test, https://doi.org/10.1214/aoms/1177730491."""
    n, m = len(first), len(second)
    _, inverse, counts = np.unique([*first, *second], return_inverse=True, return_counts=True)
    # Equal values share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    auc = (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    ties = float((counts.astype(float) ** 3 - counts).sum())
    variance = (n + m + 1 - ties / ((n + m) * (n + m - 1))) / (12 * n * m)
    z = abs(auc - 0.5) / math.sqrt(variance) if variance else 0.0
    return Verdict(auc, math.erfc(z / math.sqrt(2)), (float(np.median(first)), float(np.median(second))))


def told_apart(first: Callable[[], float], second: Callable[[], float], *, samples: int = SAMPLES) -> Verdict:
    """Take this number of samples of each kind in random order. Each call returns the seconds that it measured."""
    kinds = [True, False] * samples
    random.shuffle(kinds)
    for _ in range(_WARM_UP):
        first(), second()
    taken: dict[bool, list[float]] = {True: [], False: []}
    for is_first in kinds:
        taken[is_first].append(first() if is_first else second())
    return compared(taken[True], taken[False])


def assert_alike(what: str, first: Callable[[], float], second: Callable[[], float]) -> None:
    """Fail if the two kinds can be told apart.

    The verdict is printed and shown by ``pytest -s``.
    """
    found = told_apart(first, second)
    words = (
        f"{what}: AUC {found.auc:.4f}, p {found.p:.3g}, medians "
        f"{1e6 * found.medians_s[0]:.0f} and {1e6 * found.medians_s[1]:.0f} us, {SAMPLES} samples each"
    )
    print(f"\n{words}")  # noqa: T201
    if abs(found.auc - 0.5) >= BOUND:
        pytest.fail(f"they can be told apart: {words}")


class Stopwatch:
    """One kept-alive connection: an attacker's best position near the server, with little noise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.connect()

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def seconds(self, method: str, path: str, *, key: str, status: int, body: Mapping[str, Any] | None = None) -> float:
        """Measure from the request's first byte to the end of the answer's first line; check its status.

        The first line is the first event of a stream, or the whole of any other answer. An attacker does not wait for a
        stream's end. That end waits until the record is on the disk, which hides the computing time.
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
