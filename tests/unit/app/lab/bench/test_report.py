"""Benchmark statistics."""

import json
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.lab.bench import report
from app.lab.bench.client import Samples
from app.lab.bench.open_loop import NOT_SENT, Run, Sample

GAP_METRICS = ("inter_token_p50_ms", "inter_token_p99_ms", "inter_token_max_ms")

seconds = st.floats(min_value=1e-6, max_value=1e3, allow_nan=False)


@given(st.lists(seconds, min_size=1, max_size=200), st.floats(min_value=0, max_value=100))
def test_percentile_is_numpys(values, percent):
    assert report.percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9)


@given(st.lists(seconds, min_size=1, max_size=50), st.lists(seconds, max_size=50), seconds, seconds)
def test_measures_a_closed_loop(ttft, gaps, wall, cpu):
    metrics = report.measure(Samples(wall, ttft, gaps, 32 * len(ttft)), cpu)
    assert set(report.METRICS) - set(metrics) == (set() if gaps else set(GAP_METRICS))
    assert metrics["requests_per_s"] * wall == pytest.approx(len(ttft))
    assert metrics["output_tokens_per_s"] == pytest.approx(32 * metrics["requests_per_s"])
    assert metrics["ttft_p50_ms"] == pytest.approx(1000 * np.percentile(ttft, 50))
    assert metrics["ttft_max_ms"] == 1000 * max(ttft)
    assert metrics["api_cpu_s_per_1000"] * len(ttft) == pytest.approx(1000 * cpu)
    assert metrics["api_cpu_s_per_1000_tokens"] * 32 == pytest.approx(metrics["api_cpu_s_per_1000"])
    if gaps:
        found = [metrics[name] for name in GAP_METRICS]
        assert found == pytest.approx([1000 * np.percentile(gaps, percent) for percent in (50, 99, 100)])


def answered(sent: float, wait: float, **changes) -> Sample:
    given_values: dict[str, Any] = {
        "sent": sent,
        "first": sent + wait,
        "end": sent + wait + 1,
        "gaps_ms": [2.0, 4.0],
        "tokens": 3,
    }
    return Sample(**(given_values | changes))


FAILED = Sample(sent=0.0, end=9.0, why="HTTP/1.1 503")


@given(st.lists(st.floats(min_value=0, max_value=20), min_size=1, max_size=40), st.integers(0, 5), seconds)
def test_measures_an_open_loop(waits, failures, wall):
    samples = [answered(1.0, wait) for wait in waits] + [FAILED] * failures + [Sample(why=NOT_SENT)]
    metrics = report.measure_open(Run(wall, 0.1, samples), list(range(len(samples))))
    assert set(metrics) == set(report.OPEN_METRICS)
    assert metrics["requests_per_s"] * wall == pytest.approx(len(waits))
    assert metrics["output_tokens_per_s"] * wall == pytest.approx(3 * len(waits))
    # The same rounding as in the report: requests are sent at 1.0, and the difference loses bits.
    waited = [(1.0 + wait) - 1.0 for wait in waits]
    in_time = sum(wait < 6 for wait in waited)
    assert metrics["attainment"] == pytest.approx(in_time / (len(waits) + failures))
    assert metrics["ttft_p99_s"] == pytest.approx(np.percentile(waited, 99))
    assert metrics["inter_token_p50_ms"] == 3.0
    assert metrics["failed"] == failures
    assert metrics["longest_wait_s"] == pytest.approx(max([*waited, 9.0 if failures else 0.0]))


def test_a_mute_server_has_no_latency_and_only_misses():
    metrics = report.measure_open(Run(10, 0.1, [FAILED, FAILED]), ["a", "b"])
    assert (metrics["requests_per_s"], metrics["attainment"], metrics["failed"]) == (0, 0, 2)
    assert "ttft_p50_s" not in metrics
    assert report.measure_open(Run(0, 0.1, []), [])["failed"] == 0


@given(st.lists(st.floats(min_value=0.001, max_value=1000), min_size=1, max_size=30))
def test_jains_index(shares):
    expected = np.mean(shares) ** 2 / np.mean(np.square(shares))
    assert report.jain(shares) == pytest.approx(expected)
    assert report.jain([7.0] * len(shares)) == pytest.approx(1)
    assert report.jain([1.0] + [0.0] * (len(shares) - 1)) == pytest.approx(1 / len(shares))


def test_nobody_was_served():
    with pytest.raises(ValueError, match="No share is above 0"):
        report.jain([0.0, 0.0])


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
    # A round without a value for a metric is left out of that metric.
    assert report.summarise([{"a": 1.0}, {"a": 3.0, "b": 5.0}])["b"] == report.Spread(5.0, 5.0, 5.0)


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


def test_table_leaves_out_what_one_side_has_not():
    one = {"requests_per_s": report.Spread(1, 1, 1)}
    table = report.table("t", one | {"failed": report.Spread(0, 0, 0)}, one, ("a", "b"), report.OPEN_METRICS)
    assert table.row_count == 1


def test_environment_is_recorded_and_written(tmp_path):
    environment = report.environment()
    assert environment["cores"] >= 1
    assert environment["processor"]
    assert "torch" in environment["versions"]
    path = tmp_path / "new" / "run.json"
    report.write(path, environment)
    assert json.loads(path.read_text()) == environment
    assert f"torch {environment['versions']['torch']}" in report.describe(environment)
