"""Arrival traces of a fleet: rates, popularity and determinism."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from app.lab.simulator.traces import LENGTHS, TRACES, Trace
from app.lab.simulator.workload import BASE

TRACE = Trace("zipf", rate=200.0, seconds=100.0, seed=7, adapters=50)


@pytest.mark.parametrize("name", TRACES)
def test_arrivals_are_in_order_and_repeat_with_the_seed(name: str) -> None:
    trace = replace(TRACE, name=name)
    arrivals = list(trace.arrivals())
    assert all(one.at <= other.at for one, other in pairwise(arrivals))
    assert 0 <= arrivals[0].at <= arrivals[-1].at <= trace.seconds
    assert list(trace.arrivals()) == arrivals
    assert list(replace(trace, seed=8).arrivals()) != arrivals
    assert {arrival.version_id for arrival in arrivals} <= set(range(BASE, trace.adapters + 1))
    assert {arrival.tenant for arrival in arrivals} <= set(range(trace.tenants))
    assert all(LENGTHS[0] <= arrival.output_tokens < LENGTHS[1] for arrival in arrivals)


@pytest.mark.parametrize("name", ["zipf", "diurnal"])
def test_the_mean_rate_is_as_given(name: str) -> None:
    arrivals = list(replace(TRACE, name=name).arrivals())
    # Four standard deviations of a Poisson number.
    assert abs(len(arrivals) - 20_000) < 4 * 20_000**0.5
    assert abs(sum(arrival.version_id == BASE for arrival in arrivals) / len(arrivals) - TRACE.base) < 0.01


def test_popularity_follows_zipfs_law() -> None:
    counts = Counter(arrival.version_id for arrival in replace(TRACE, base=0.0).arrivals())
    assert counts[1] / counts[2] == pytest.approx(2, rel=0.1)
    assert counts[1] / counts[4] == pytest.approx(4, rel=0.15)


def test_a_flash_crowd_requests_one_adapter_that_was_rare() -> None:
    trace = replace(TRACE, name="flash crowd")
    crowd = [arrival.at for arrival in trace.arrivals() if arrival.version_id == trace.adapters]
    during = [at for at in crowd if 40 <= at < 60]
    assert len(during) > 1_500
    assert len(crowd) - len(during) < 200


def test_regions_have_different_hours_and_adapters() -> None:
    trace = replace(TRACE, name="diurnal", base=0.0)
    first = Counter(arrival.version_id for arrival in trace.arrivals() if arrival.at < 5)
    later = Counter(arrival.version_id for arrival in trace.arrivals() if 22 < arrival.at < 28)
    assert first.most_common(1) != later.most_common(1)


def test_bursts_are_burstier_than_poisson() -> None:
    def dispersion(name: str) -> float:
        seconds = Counter(int(arrival.at) for arrival in replace(TRACE, name=name).arrivals())
        mean = seconds.total() / 100
        return sum((seconds[second] - mean) ** 2 for second in range(100)) / 100 / mean

    assert dispersion("mmpp") > 10 * dispersion("zipf")


def test_wrong_traces_are_refused() -> None:
    with pytest.raises(ValueError, match="Choose from zipf, diurnal, flash crowd, mmpp"):
        replace(TRACE, name="weekly")
    with pytest.raises(ValueError, match="above 0"):
        replace(TRACE, rate=0.0)
