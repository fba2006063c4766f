"""Cold request against a saturated slot; the numbers come from ``tenora server bench starvation``."""

import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench.open_loop import NOT_SENT
from app.lab.bench.servers import Server
from app.lab.bench.starvation import COLD, HOT, MAX_AGE_S, METRICS, Measurement, Size, figures
from app.lab.bench.timeline import NotMeasured
from tests.support.live_server import live_server
from tests.support.paced import Seen, paced_app, served, setup_in

SECONDS = 20.0


def hot(begin: float, end: float, length: float = 1.0):
    """Build the sequential answers of one client: ``length`` s and ten tokens each."""
    count = round((end - begin) / length)
    starts = [begin + number * length for number in range(count)]
    return [served(HOT, at, [at + length * (token + 1) / 10 for token in range(10)]) for at in starts]


@given(ttft=st.floats(1.0, 10.0), length=st.sampled_from([0.25, 0.5, 1.0]))
def test_the_bound_is_the_age_plus_the_longest_answer(ttft, length):
    samples = [*hot(0.0, SECONDS + 1, length), served(HOT, 13.0, [30.0]), served(COLD, 2.0, [2.0 + ttft])]
    found = figures(samples, SECONDS)
    assert found["drain_s"] == pytest.approx(length)
    assert found["bound_s"] == pytest.approx(MAX_AGE_S + length)
    assert found["cold_ttft_s"] == pytest.approx(ttft)
    assert found["of_bound"] == pytest.approx(ttft / found["bound_s"])
    assert found["hot_requests"] <= (2 + ttft) / length + 1
    assert set(found) <= set(METRICS)


def test_what_stood_still_for_the_cold_request_is_lost():
    # From 4 s to 6 s no hot request is answered.
    samples = [*hot(0.0, 4.0), *hot(6.0, 21.0), served(COLD, 2.0, [5.0, 6.0])]
    found = figures(samples, SECONDS)
    assert found["hot_lost_s"] == pytest.approx(2.0, abs=0.2)
    assert found["hot_tokens_per_s"] == pytest.approx(10 * 17 / 19, rel=0.02)


def test_a_run_of_mostly_waiting_reports_no_loss():
    assert "hot_lost_s" not in figures([*hot(0.0, 21.0), served(COLD, 2.0, [19.0])], SECONDS)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([*hot(0.0, 15.0), served(COLD, 2.0, [4.0])], "The hot load ended before 20 s"),
        ([*hot(0.0, 21.0), served(COLD, 2.0, [], why="HTTP/1.1 503", end=3.0)], "cold failed: HTTP/1.1 503"),
        ([*hot(0.0, 21.0), served(COLD, None, [], why=NOT_SENT)], "0 cold requests were sent"),
        ([*hot(0.0, 21.0), served(COLD, 2.0, [], end=3.0)], "without a token"),
        ([served(HOT, 0.0, [9.0, 21.0]), served(COLD, 2.0, [4.0])], "No hot request was answered before"),
        ([served(HOT, 0.0, [], why="HTTP/1.1 500", end=21.0), served(COLD, 2.0, [4.0])], "hot failed: HTTP/1.1 500"),
        ([served(COLD, 2.0, [4.0])], "The hot load ended before"),
    ],
)
def test_a_run_that_went_wrong_is_no_result(samples, why):
    with pytest.raises(NotMeasured, match=why):
        figures(samples, SECONDS)


def test_the_cold_request_comes_once_while_the_hot_ones_go_on(tmp_path):
    seen = Seen()
    names = [HOT, COLD, "filler-0", "filler-1"]
    size = Size(rounds=1, seconds=1.5, cold_at_s=1.0)
    with live_server(paced_app(seen)) as url:
        server = Server("vllm", int(url.rpartition(":")[2]), os.getpid())
        (one,) = Measurement(setup_in(tmp_path, names, slots=1), size)(server, 1, tmp_path)
    # First the cold adapter is requested, then the fillers that evict it.
    assert seen.models[:4] == [COLD, "filler-0", "filler-1", HOT]
    assert Counter(one.group for one in one.served)[COLD] == 1
    assert one.figures["hot_requests"] >= 8
