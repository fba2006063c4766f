"""Shares of backlogged tenants and their mutual effects; the numbers come from ``tenora server bench fairness``."""

import os
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.lab.bench import outcome, shares
from app.lab.bench.fairness import (
    CAPACITY,
    CLOSED,
    CLOSED_METRICS,
    EQUAL,
    HOSTILE,
    OPEN,
    OPEN_METRICS,
    TENANTS,
    TENFOLD,
    WEIGHTS,
    Measurement,
    Size,
    closed_figures,
    open_figures,
    panels,
)
from app.lab.bench.pairs import Round
from app.lab.bench.report import Metric, Spread
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured
from tests.support.live_server import live_server
from tests.support.paced import Seen, paced_app, served, setup_in

pytestmark = pytest.mark.slow

OTHER = TENANTS[1]
EVEN = {HOSTILE: 1.0, OTHER: 1.0}

tokens = st.lists(st.integers(1, 1000), min_size=2, max_size=8)


@given(tokens, st.floats(0.1, 100))
def test_shares_in_proportion_to_the_weights_are_fair(weights, scale):
    values = [scale * weight for weight in weights]
    assert shares.jain(values, weights) == pytest.approx(1)
    assert shares.off_weights(values, weights) == pytest.approx(0, abs=1e-9)


@given(tokens)
def test_one_that_has_everything_is_as_unfair_as_can_be(weights):
    values = [1.0, *[0.0] * (len(weights) - 1)]
    assert shares.jain(values, weights) == pytest.approx(1 / len(weights))
    assert shares.off_weights(values, [1] * len(weights)) == pytest.approx(len(weights) - 1)


@given(tokens)
def test_shares_weighted_by_their_weights_make_the_whole(values):
    weights = [1 + number % 4 for number in range(len(values))]
    found = shares.shares_of(values, weights)
    assert sum(share * weight for share, weight in zip(found, weights, strict=True)) == pytest.approx(sum(weights))


def test_five_percent_off_is_measured_as_five_percent():
    assert shares.off_weights([105, 95], [1, 1]) == pytest.approx(0.05)
    assert shares.off_weights([100, 200, 400], [1, 2, 4]) == pytest.approx(0)


def test_an_output_token_counts_twice_and_a_prompt_once():
    requests = [served(HOSTILE, 0.0, [1.0, 2.0, 3.0]), served(OTHER, 0.0, [2.0])]
    assert shares.served_tokens(requests, EVEN, 0.0, 9.0, output_only=False) == [10 + 6, 10 + 2]
    assert shares.served_tokens(requests, EVEN, 0.0, 9.0, output_only=True) == [3, 1]
    assert shares.served_tokens(requests, EVEN, 2.0, 3.0, output_only=True) == [1, 1]


def test_a_closed_loop_that_went_wrong_is_no_result():
    good = served(HOSTILE, 0.0, [1.0, 2.0])
    with pytest.raises(NotMeasured, match="No tenant was served anything"):
        closed_figures([good], 5.0, 9.0, EVEN)
    with pytest.raises(NotMeasured, match=f"{OTHER} failed: HTTP/1.1 429"):
        closed_figures([good, served(OTHER, 1.0, [], end=1.0, why="HTTP/1.1 429")], 0.0, 9.0, EVEN)


def test_a_closed_loop_counts_between_the_moments_only():
    found = closed_figures([served(HOSTILE, 0.0, [1.0, 2.0]), served(OTHER, 0.0, [1.0, 6.0])], 0.5, 5.0, EVEN)
    assert found["requests_per_s"] == pytest.approx(1 / 4.5)
    assert found["jain"] == pytest.approx((14 + 12) ** 2 / (2 * (14**2 + 12**2)))
    assert found["off_weights_output"] == pytest.approx(1 / 3)


def test_unanswered_requests_count_as_infinite_latency():
    others = [served(OTHER, 0.0, [0.5]) for _ in range(49)]
    refused = served(OTHER, 0.0, [], end=0.01, why="HTTP/1.1 503")
    found = open_figures([*others, refused, served(HOSTILE, 0.0, [3.0])], 10.0)
    assert (found["others_p50_ttft_s"], found["others_p99_ttft_s"], found["others_failed"]) == (0.5, inf, 1)
    assert (found["hostile_p50_ttft_s"], found["hostile_failed"]) == (3, 0)
    assert found["requests_per_s"] == pytest.approx(5.1)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=300))
def test_the_hostile_tenants_own_waits_are_not_the_others(waits):
    samples = [served(OTHER, 0.0, [wait]) for wait in waits]
    found = open_figures([*samples, served(HOSTILE, 0.0, [1000.0])], 10.0)
    assert min(waits) <= found["others_p50_ttft_s"] <= found["others_p99_ttft_s"] <= max(waits)


@pytest.mark.parametrize("group", [HOSTILE, OTHER])
def test_nothing_is_said_of_others_where_there_is_one_tenant(group):
    with pytest.raises(NotMeasured, match="A tenant sent nothing"):
        open_figures([served(group, 0.0, [1.0])], 10.0)


@pytest.mark.long
@pytest.mark.parametrize("turns", [1, 2])
def test_a_round_has_a_hostile_tenant_with_tenfold_load(tmp_path, turns):
    seen = Seen()
    # Long enough to have requests to count even if the machine stalls for a second.
    size = Size(rounds=1, seconds=3.0 * turns, turns=turns, capacity_s=3.0, clients=2)
    with live_server(paced_app(seen)) as url:
        port = int(url.rpartition(":")[2])
        tenora = Server("tenora", port, os.getpid(), admin_headers={"authorization": "Bearer key"})
        setup = setup_in(tmp_path, list(TENANTS), slots=8)
        rounds = Measurement(setup, size)(tenora, 1, tmp_path)
    assert sorted(one.part for one in rounds) == sorted([*OPEN, *CLOSED, *[CAPACITY] * (turns - 1)])
    assert seen.tenants == {tenant: {"weight": weight} for tenant, weight in zip(TENANTS, WEIGHTS, strict=True)}
    by_part = {one.part: one for one in rounds}
    equal, tenfold = (Counter(one.group for one in by_part[part].served) for part in (EQUAL, TENFOLD))
    assert tenfold[HOSTILE] == pytest.approx(10 * equal[HOSTILE], abs=10 * turns)
    assert all(tenfold[tenant] == equal[tenant] for tenant in TENANTS[1:])
    assert set(by_part[TENFOLD].figures) == set(OPEN_METRICS)
    assert all(set(by_part[part].figures) == set(CLOSED_METRICS) for part in CLOSED)
    assert len(panels(rounds)) == 4


def test_each_sides_medians_and_the_rounds_own_ratios():
    values = {("tenora", 1): 2.0, ("vllm", 1): 1.0, ("tenora", 2): 9.0, ("vllm", 2): 3.0, ("tenora", 3): 5.0}
    rounds = [Round(side, number, EQUAL, {"x": value}, ()) for (side, number), value in values.items()]
    assert outcome.paired(rounds, EQUAL, "x") == [2, 3]
    assert outcome.spreads(rounds, "tenora", EQUAL) == {"x": Spread(5, 2, 9)}
    assert outcome.paired(rounds, EQUAL, "other") == outcome.paired(rounds, TENFOLD, "x") == []
    shown = Console(width=120, record=True)
    with shown.capture() as capture:
        shown.print(outcome.table(EQUAL, rounds, EQUAL, {"x": Metric("it", 1), "other": Metric("another", 1)}))
    text = capture.get()
    for words in ("5.0  (2.0 to 9.0)", "2.0  (1.0 to 3.0)", "2.500"):
        assert words in text
    assert "another" not in text
