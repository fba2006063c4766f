"""Effect of cold loads on a stream; the numbers come from ``tenora server bench coldload``."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench import cold
from app.lab.bench.coldload import COLD, LOAD, METRICS, PARTS, STREAM, Measurement, Names, Size, figures, panels
from app.lab.bench.open_loop import NOT_SENT
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured
from tests.support.live_server import live_server
from tests.support.paced import Seen, paced_app, served, setup_in

pytestmark = pytest.mark.slow

CUT_OFF = "no answer before the end of the run"
#: One stream outlasts the whole run: loads take only milliseconds here, so a change of streams would distort them.
SIZE = Size(rounds=1, adapters=2, at_once=2, settle_s=0.4, watch_s=0.8, stream_tokens=1000)


def stream(gap: float, worst: float, begin: float = 3.0, until: float = 8.0):
    """Build a stream with tokens ``gap`` s apart, and one gap of ``worst`` s just after ``begin``."""
    tokens = [gap * number for number in range(int(begin / gap) + 1)]
    tokens.append(tokens[-1] + worst)
    while tokens[-1] < until:
        tokens.append(tokens[-1] + gap)
    return served(STREAM, 0.0, tokens, why=CUT_OFF, end=until)


@given(gap=st.floats(0.01, 0.1), factor=st.floats(1.0, 20.0))
def test_the_worst_gap_while_loading_against_the_median_before(gap, factor):
    found = figures([stream(gap, factor * gap), served(COLD, 3.0, [3.5, 4.0], load_ms=80.0)])
    assert found["median_gap_ms"] == pytest.approx(1000 * gap)
    assert found["worst_gap_ms"] == pytest.approx(1000 * factor * gap)
    assert found["worst_before_ms"] == pytest.approx(1000 * gap)
    assert found["worst_ratio"] == pytest.approx(factor)
    assert (found["ttft_ms"], found["worst_ttft_ms"], found["load_ms"]) == (500, 500, 80)


def test_gaps_outside_the_run_do_not_count():
    early, late = stream(0.05, 1.0, begin=1.0), stream(0.05, 1.0, begin=6.0)
    for one in (early, late):
        found = figures([one, served(COLD, 3.0, [3.2, 3.4])])
        assert found["worst_ratio"] == pytest.approx(1)


def test_time_counts_from_the_call_that_loads():
    samples = [
        served(LOAD, 3.0, [3.4]),
        served(COLD, 3.5, [3.9]),
        served(LOAD, 4.0, [4.1]),
        served(COLD, 4.1, [4.3]),
    ]
    found = figures([stream(0.05, 0.05), *samples])
    assert found["worst_ttft_ms"] == pytest.approx(900)
    assert found["ttft_ms"] == pytest.approx(600)
    assert "load_ms" not in found


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([stream(0.05, 0.05, until=4.0), served(COLD, 3.0, [3.5, 5.0])], "The stream ended at 4.0 s of 5.00 s"),
        ([replace(stream(0.05, 0.05), group="other"), served(COLD, 3.0, [3.5])], "The stream ran for 0.00"),
        ([stream(0.05, 0.05), served(COLD, 3.0, [], why="HTTP/1.1 503", end=3.5)], "cold failed: HTTP/1.1 503"),
        ([stream(0.05, 0.05), served(COLD, None, [], why=NOT_SENT)], "cold failed: not sent"),
        ([stream(0.05, 0.05), served(LOAD, 3.0, [], why="HTTP/1.1 400", end=3.5)], "load failed: HTTP/1.1 400"),
        ([stream(0.05, 0.05), served(COLD, 3.0, [], end=3.5)], "without a token"),
        ([stream(0.05, 0.05)], "No adapter was requested"),
        ([stream(0.5, 0.5), served(COLD, 3.0, [3.5])], "6 gaps before the first load"),
    ],
)
def test_a_run_that_went_wrong_is_no_result(samples, why):
    if samples[0].group == "other":
        samples[0] = replace(samples[0], sample=replace(samples[0].sample, why=None))
    with pytest.raises(NotMeasured, match=why):
        figures(samples)


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def server(seen):
    with live_server(paced_app(seen)) as url:
        yield Server("vllm", int(url.rpartition(":")[2]), os.getpid())


def test_vllm_loads_before_each_request_and_nothing_twice(server, seen, tmp_path):
    names = Names.of(SIZE)
    setup = setup_in(tmp_path, names.all(), slots=2)
    rounds = Measurement(setup, names, SIZE)(server, 1, tmp_path / "nothing")
    assert [one.part for one in rounds] == list(PARTS)
    loaded = [body["lora_name"] for body in seen.loaded]
    # Loads of the second part begin at the same time, in any order.
    assert loaded[: -SIZE.adapters] == [*names.fillers, *names.one]
    assert sorted(loaded[-SIZE.adapters :]) == sorted(names.some)
    assert seen.loaded[0]["lora_path"] == str(setup.adapters[names.fillers[0]])
    asked = [name for name in seen.models if name != "base"]
    assert asked[: len(loaded) - SIZE.adapters] == [*names.fillers, *names.one]
    assert sorted(asked[len(loaded) - SIZE.adapters :]) == sorted([*names.some, *names.some])
    for one in rounds:
        assert set(one.figures) <= set(METRICS)
        assert 0 < one.figures["median_gap_ms"] <= one.figures["worst_gap_ms"]
    assert [panel.title for panel in panels(rounds)] == list(PARTS)


def test_tenora_gets_warm_requests_and_no_load_calls(server, seen, tmp_path):
    names = Names.of(SIZE)
    setup = setup_in(tmp_path, names.all(), slots=2)
    seen.tiers.update(dict.fromkeys(names.all(), "disk"))
    tenora = replace(server, name="tenora", admin_headers={"authorization": "Bearer key"})
    Measurement(setup, names, SIZE)(tenora, 1, tmp_path / "nothing")
    assert seen.loaded == []
    assert [name for name in seen.models if name != "base"][: len(names.all())] == names.all()


def test_in_slots_is_what_tenora_says_is(server, seen):
    seen.tiers.update({"a": "slot", "b": "host", "c": "slot"})
    assert cold.in_slots(replace(server, name="tenora", admin_headers={"authorization": "key"}), ["a", "b"]) == ["a"]
    assert cold.in_slots(server, ["a", "b"]) == ["a", "b"]


def test_an_adapter_that_is_still_in_memory_is_not_cold(server, seen, tmp_path):
    tenora = replace(server, name="tenora", admin_headers={"authorization": "Bearer key"})
    seen.tiers.update({"a": "disk", "b": "host", "c": "slot"})
    cold.require_cold(tenora, ["a", "never asked for"])
    with pytest.raises(NotMeasured, match=r"not on the disk only: \{'b': 'host', 'c': 'slot'\}"):
        cold.require_cold(tenora, ["a", "b", "c"])


def test_the_mean_of_the_loads_between_two_moments(server):
    totals = cold.load_totals(server)
    assert totals == {"stage": (1.5, 3.0)}
    assert cold.mean_ms({}, totals) == {"stage": 500}
    assert cold.mean_ms({"stage": (1.0, 1.0)}, totals) == {"stage": 250}
    assert cold.mean_ms(totals, totals) == {}


def test_dropping_the_page_cache_leaves_files_unchanged(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "weights").write_bytes(b"weights")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    cold.drop_from_page_cache([tmp_path, tmp_path / "missing"])
    assert (tmp_path / "a" / "b" / "weights").read_bytes() == b"weights"
