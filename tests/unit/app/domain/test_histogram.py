"""Latency histogram: no sample is lost, percentiles are upper bounds within one bucket, counts add up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.histogram import EDGES_S, LatencyHistogram, bucket_of

WIDTH = 2**0.25
times = st.lists(st.floats(0, 300), min_size=1, max_size=50)


@given(st.floats(0, 1e6))
def test_a_time_lies_within_its_bucket(time_s: float) -> None:
    index = bucket_of(time_s)
    assert index == 0 or time_s > EDGES_S[index - 1]
    assert index == len(EDGES_S) or time_s <= EDGES_S[index]


@pytest.mark.parametrize("index", range(len(EDGES_S)))
def test_an_edge_belongs_to_the_bucket_below_it(index: int) -> None:
    assert bucket_of(EDGES_S[index]) == index
    assert bucket_of(math.nextafter(EDGES_S[index], math.inf)) == index + 1


@given(times, times)
def test_counts_add_up_and_subtract(some: list[float], others: list[float]) -> None:
    both = LatencyHistogram.of(some) + LatencyHistogram.of(others)
    assert both == LatencyHistogram.of(some + others)
    assert both.total == len(some) + len(others)
    assert both - LatencyHistogram.of(others) == LatencyHistogram.of(some)


@given(times)
def test_a_percentile_bounds_the_quantile_within_one_bucket(found: list[float]) -> None:
    exact = sorted(found)[math.ceil(0.95 * len(found)) - 1]
    estimate = LatencyHistogram.of(found).percentile(0.95)
    assert estimate is not None
    assert min(exact, EDGES_S[-1]) <= estimate * (1 + 1e-12)
    assert estimate <= max(exact * WIDTH * (1 + 1e-12), EDGES_S[0])


@given(times, st.floats(0.001, 300))
def test_late_ones_are_late_for_sure(found: list[float], limit_s: float) -> None:
    late = LatencyHistogram.of(found).later_than(limit_s)
    assert late <= sum(time_s > limit_s for time_s in found)
    if limit_s * WIDTH <= EDGES_S[-1]:
        assert late >= sum(time_s > limit_s * WIDTH for time_s in found)


def test_nothing_has_no_percentile_and_other_buckets_are_refused() -> None:
    assert LatencyHistogram().percentile(0.95) is None
    with pytest.raises(ValueError, match="has 70 counts; 3 were passed"):
        LatencyHistogram((1, 2, 3))
