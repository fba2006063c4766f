"""The PromQL checker finds faulty queries."""

import pytest

from tests.support.promql import exposed, problems

SERIES = exposed(
    "# TYPE requests_total counter\n"
    'requests_total{status="200"} 1\n'
    "# TYPE load_seconds histogram\n"
    'load_seconds_bucket{phase="copy",le="1.0"} 1\nload_seconds_bucket{phase="copy",le="+Inf"} 1\n'
    'load_seconds_count{phase="copy"} 1\nload_seconds_sum{phase="copy"} 1\n'
    "# TYPE up gauge\nup 1\n"
)


@pytest.mark.parametrize(
    "query",
    [
        "up == 0",
        'sum by (job, status) (rate(requests_total{job="x",status=~"2.."}[5m])) / 2',
        "histogram_quantile(0.9, sum by (le, phase) (rate(load_seconds_bucket[5m])))",
    ],
)
def test_a_query_that_finds_what_it_asks_for(query: str) -> None:
    assert problems(query, SERIES) == []


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("up ==", "invalid promql"),
        ("rate(up)", "expected type matrix"),
        ("unknown(up)", "unknown function"),
        ("downs + up", "there is no downs"),
        ("rate(requests[5m])", "there is no requests"),
        ('requests_total{status="500"}', "no series is requests_total"),
        ('requests_total{code=~".*"}', "no series is requests_total"),
        ('requests_total{status!~"2.."}', "no series is requests_total"),
        ("sum by (code) (requests_total)", "requests_total has no label code"),
        ("rate(up[5m])", "rate of up, which is no counter"),
        ("histogram_quantile(0.9, rate(load_seconds_count[5m]))", "needs buckets by le"),
        ("histogram_quantile(0.9, sum by (phase) (rate(load_seconds_bucket[5m])))", "needs buckets by le"),
    ],
)
def test_a_query_that_does_not(query: str, wrong: str) -> None:
    assert any(wrong in problem for problem in problems(query, SERIES)), problems(query, SERIES)
