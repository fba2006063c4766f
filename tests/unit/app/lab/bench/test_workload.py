"""Workload generator of the benchmark with many adapters."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench.workload import SHORTEST, Load, arrivals, popular, share

VOCABULARY = 700

loads = st.builds(
    Load,
    rate=st.floats(min_value=1, max_value=200),
    seconds=st.floats(min_value=0, max_value=3),
    adapters=st.integers(min_value=1, max_value=2000),
    alpha=st.floats(min_value=0.05, max_value=3),
    cv=st.floats(min_value=0.2, max_value=4),
    longest=st.integers(min_value=SHORTEST + 1, max_value=100),
)


@given(loads, st.integers(min_value=0, max_value=2**32))
def test_requests_are_as_many_and_as_long_as_asked(load, seed):
    found = arrivals(load, vocabulary=VOCABULARY, seed=seed)
    assert len(found) == int(load.rate * load.seconds)
    assert found == arrivals(load, vocabulary=VOCABULARY, seed=seed)
    times = [arrival.at for arrival in found]
    assert times == sorted(times)
    for arrival in found:
        assert 0 <= arrival.adapter < load.adapters
        assert SHORTEST <= len(arrival.prompt) < load.longest
        assert SHORTEST <= arrival.output_tokens < load.longest
        assert all(0 <= token < VOCABULARY for token in arrival.prompt)


@given(st.integers(min_value=1, max_value=500), st.floats(min_value=0.05, max_value=3))
def test_shares_are_a_distribution(adapters, alpha):
    shares = [share(adapter, adapters, alpha) for adapter in range(adapters)]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    assert popular(adapters, adapters, alpha) == pytest.approx(1)


@pytest.mark.parametrize(("alpha", "percent"), [(0.1, 74), (0.3, 41), (0.6, 17), (1, 5)])
def test_the_ten_most_popular_have_the_documented_share(alpha, percent):
    assert round(100 * popular(10, 200, alpha)) == percent
    load = Load(rate=50_000, seconds=1, adapters=200, alpha=alpha)
    counted = Counter(arrival.adapter for arrival in arrivals(load, vocabulary=VOCABULARY, seed=7))
    most = sum(count for _, count in counted.most_common(10)) / load.requests
    assert most == pytest.approx(popular(10, 200, alpha), abs=0.01)


@pytest.mark.parametrize("cv", [1, 4])
def test_gaps_have_the_requested_rate_and_variation(cv):
    load = Load(rate=50, seconds=2000, adapters=1, cv=cv, longest=SHORTEST + 1)
    gaps = np.diff([0.0, *(arrival.at for arrival in arrivals(load, vocabulary=VOCABULARY, seed=3))])
    assert gaps.mean() == pytest.approx(1 / load.rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
