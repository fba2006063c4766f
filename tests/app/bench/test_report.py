"""Statistics of the benchmarks."""

import json
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.bench import report
from app.bench.client import Samples

seconds = st.floats(min_value=1e-6, max_value=1e3, allow_nan=False)


@given(st.lists(seconds, min_size=1, max_size=200), st.floats(min_value=0, max_value=100))
def test_percentile_is_numpys(values, percent):
    assert report.percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9)


@given(st.lists(seconds, min_size=1, max_size=50), st.lists(seconds, min_size=1, max_size=50), seconds, seconds)
def test_measures_a_round(ttft, gaps, wall, cpu):
    metrics = report.measure(Samples(wall, ttft, gaps, 32 * len(ttft)), cpu)
    assert set(metrics) == set(report.METRICS)
    assert metrics["requests_per_s"] * wall == pytest.approx(len(ttft))
    assert metrics["output_tokens_per_s"] == pytest.approx(32 * metrics["requests_per_s"])
    assert metrics["ttft_p50_ms"] <= metrics["ttft_p99_ms"] <= 1000 * max(ttft) * (1 + 1e-9)
    assert metrics["inter_token_p50_ms"] == pytest.approx(1000 * np.percentile(gaps, 50))
    assert metrics["api_cpu_s_per_1000"] * len(ttft) == pytest.approx(1000 * cpu)


@given(st.lists(seconds, min_size=1, max_size=9), st.lists(seconds, min_size=1, max_size=9))
def test_spread_and_ratio_of_medians(ours, theirs):
    ours_spread, theirs_spread = report.Spread.of(ours), report.Spread.of(theirs)
    assert ours_spread.low <= ours_spread.median <= ours_spread.high
    assert report.ratio(ours_spread, theirs_spread) == median(ours) / median(theirs)


def test_no_ratio_to_nothing():
    assert report.ratio(report.Spread(1, 1, 1), report.Spread(0, 0, 0)) is None


def test_summarises_each_metric_over_the_rounds():
    rounds = [dict.fromkeys(report.METRICS, float(value)) for value in (3, 1, 2)]
    assert report.summarise(rounds) == dict.fromkeys(report.METRICS, report.Spread(2.0, 1.0, 3.0))


def test_table_shows_medians_spread_and_ratio():
    ours = dict.fromkeys(report.METRICS, report.Spread(9.0, 8.0, 11.0))
    theirs = dict.fromkeys(report.METRICS, report.Spread(10.0, 10.0, 10.0))
    console = Console(width=120, record=True)
    with console.capture() as capture:
        console.print(report.table("concurrency 16", ours, theirs, ("tenora", "vllm")))
    text = capture.get()
    assert "concurrency 16" in text
    assert "9.00  (8.00 to 11.00)" in text
    assert text.count("0.900") == len(report.METRICS)


def test_environment_is_recorded_and_written(tmp_path):
    environment = report.environment()
    assert environment["cores"] >= 1
    assert environment["processor"]
    assert "torch" in environment["versions"]
    path = tmp_path / "new" / "run.json"
    report.write(path, environment)
    assert json.loads(path.read_text()) == environment
    assert f"torch {environment['versions']['torch']}" in report.describe(environment)
