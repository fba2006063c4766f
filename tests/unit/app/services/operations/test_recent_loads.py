"""Percentiles of recent loads."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent
from app.services.operations.recent_loads import LoadSeconds, LoadTimes, RecentLoads

SECONDS = st.floats(0, 1000)


def loaded(*loads: LoadPhases, keep: int = 1000) -> RecentLoads:
    recent = RecentLoads(keep)
    for phases in loads:
        recent.note(EngineEvent("load", 1, 1.0, phases))
    return recent


def test_without_loads_there_are_no_percentiles() -> None:
    recent = RecentLoads()
    recent.note(EngineEvent("evict", 1))
    recent.note(EngineEvent("load_failed", 1, 0.5))
    assert recent.times() == LoadTimes(0, None, None)


def test_one_load_is_every_percentile() -> None:
    once = LoadSeconds(1.0, 2.0, 3.0, 4.0, 10.0)
    assert loaded(LoadPhases(1.0, 2.0, 3.0, 4.0)).times() == LoadTimes(1, once, once)


def test_each_phase_has_its_own_percentiles() -> None:
    times = loaded(*(LoadPhases(number, 100 - number, 0, 0) for number in range(1, 101))).times()
    assert times == LoadTimes(100, LoadSeconds(50, 49, 0, 0, 100), LoadSeconds(99, 98, 0, 0, 100))


def test_only_the_last_ones_count() -> None:
    times = loaded(*(LoadPhases(number, 0, 0, 0) for number in range(10)), keep=3).times()
    assert times.loads == 3
    assert times.p50 is not None
    assert times.p50.fetch == 8


@given(st.lists(st.builds(LoadPhases, SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=50))
def test_quantiles_are_ordered_and_split_the_samples(loads: list[LoadPhases]) -> None:
    times = loaded(*loads).times()
    assert times.p50 is not None
    assert times.p99 is not None
    assert times.p50.stage == statistics.median_low(load.stage_s for load in loads)
    for name in ("fetch", "stage", "wait", "copy", "total"):
        assert getattr(times.p50, name) <= getattr(times.p99, name)
