"""Lines of the workload ``batch``, and its comparison of results, usage and rounds."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench.batch_interactive import sent_between, stream_of
from app.lab.bench.batch_lines import (
    ENDPOINT,
    LONGEST,
    by_adapter,
    compare,
    extrapolated_s,
    make_lines,
    read_results,
    write_lines,
)
from app.lab.bench.batch_rounds import METRICS, STREAM_METRICS, Round, RoundsFile, panels, ratios, table
from app.lab.bench.batch_sides import phases
from app.lab.bench.open_loop import NOT_SENT, Run, Sample
from app.lab.bench.timeline import NotMeasured

ADAPTERS = ("one", "two", "three")
WORDS = [f"word{number}" for number in range(100)]


def lines_of(count: int = 30, words_seed: str = "batch"):
    return make_lines(count, ADAPTERS, WORDS, seed=7, words_seed=words_seed)


def answer(line, status: int = 200):
    usage = {"prompt_tokens": 10, "completion_tokens": line.output_tokens}
    return {"custom_id": line.custom_id, "response": {"status_code": status, "body": {"usage": usage}}, "error": None}


def charged(lines) -> dict[str, int]:
    tokens = sum(line.output_tokens for line in lines)
    return {"requests": len(lines), "prompt_tokens": 10 * len(lines), "output_tokens": tokens}


def test_each_adapter_has_as_many_lines_in_mixed_order():
    lines = lines_of()
    assert Counter(line.adapter for line in lines) == dict.fromkeys(ADAPTERS, 10)
    assert len({line.custom_id for line in lines}) == 30
    # Sorted lines would change their adapter twice.
    assert sum(first.adapter != second.adapter for first, second in itertools.pairwise(lines)) > 5
    assert all(len(line.prompt.split()) < LONGEST and line.output_tokens < LONGEST for line in lines)


def test_sides_have_equal_lengths_and_other_prompts():
    first, second = lines_of(), lines_of(words_seed="clients")
    shape = [(line.custom_id, line.adapter, len(line.prompt.split()), line.output_tokens) for line in first]
    assert shape == [(line.custom_id, line.adapter, len(line.prompt.split()), line.output_tokens) for line in second]
    assert not {line.prompt for line in first} & {line.prompt for line in second}


def test_a_file_of_lines_has_openais_form(tmp_path):
    lines = lines_of(3)
    write_lines(tmp_path / "lines.jsonl", lines)
    records = read_results(tmp_path / "lines.jsonl")
    assert [record["custom_id"] for record in records] == [line.custom_id for line in lines]
    assert {(record["method"], record["url"]) for record in records} == {("POST", ENDPOINT)}
    assert records[0]["body"]["messages"] == [{"role": "user", "content": lines[0].prompt}]
    assert read_results(tmp_path / "missing.jsonl") == []


@given(kept=st.lists(st.integers(0, 29), max_size=60))
def test_missing_and_double_answers_are_counted(kept):
    lines = lines_of()
    figures = compare(lines, [answer(lines[number]) for number in kept])
    assert figures == {"lost": 30 - len(set(kept)), "double": len(kept) - len(set(kept))}


def test_a_refused_line_is_lost_and_not_charged():
    lines = lines_of(3)
    results = [answer(lines[0]), answer(lines[1], status=503), {**answer(lines[2]), "response": None}]
    figures = compare(lines, results, charged(lines[:1]))
    assert figures == {"lost": 2, "double": 0, "charged_twice": 0, "tokens_off": 0}


def test_a_double_charge_is_seen_in_requests_and_tokens():
    lines = lines_of(3)
    figures = compare(lines, [answer(line) for line in lines], charged([*lines, lines[0]]))
    assert (figures["charged_twice"], figures["tokens_off"]) == (1, 10 + lines[0].output_tokens)


def test_every_adapter_takes_the_mean_of_the_measured_ones():
    groups = by_adapter(lines_of())
    assert sorted(groups) == sorted(ADAPTERS)
    assert extrapolated_s([10.0, 14.0], len(groups)) == 36.0


def round_of(side: str, number: int, lines_per_s: float) -> Round:
    return Round(side, number, {"lines_per_s": lines_per_s, "lost": 0.0})


def test_ratios_are_those_of_each_round():
    rounds = [round_of("batch", 1, 200), round_of("clients", 1, 100), round_of("batch", 2, 90)]
    rounds += [round_of("clients", 2, 30), round_of("generate", 2, 90), Round("kill", 1, {"lost": 0.0})]
    assert {side: ratios(rounds, side) for side in ("batch", "clients", "generate", "kill")} == {
        "batch": [1, 1],
        "clients": [2, 3],
        "generate": [1],
        "kill": [],
    }
    shown = table(rounds, METRICS)
    assert [column.header for column in shown.columns] == ["", "batch", "clients", "generate", "kill"]
    assert list(shown.columns[2].cells)[-1] == "2.50"
    assert list(shown.columns[4].cells)[-1] == "-"
    assert [series.name for series in panels(rounds)[0].series] == ["batch", "clients", "generate"]


def test_a_later_run_adds_to_the_rounds_of_its_file(tmp_path):
    path, facts = tmp_path / "result.json", {"date": "first", "commit": "a", "size": {"lines": 3}}
    RoundsFile(path, facts).add(round_of("batch", 1, 200))
    later = RoundsFile(path, {**facts, "date": "second"})
    assert (later.has(1, "batch"), later.has(1, "batch", "clients"), later.has(2, "batch")) == (True, False, False)
    later.add(round_of("clients", 1, 100), Round("alone", 1, {}, (0.1,)))
    content = json.loads(path.read_text())
    assert (content["date"], [one["side"] for one in content["rounds"]]) == ("first", ["batch", "clients", "alone"])
    assert ratios(RoundsFile(path, facts).rounds, "clients") == [2]
    assert list(tmp_path.iterdir()) == [path]


def test_rounds_of_another_measurement_are_not_mixed(tmp_path):
    path = tmp_path / "result.json"
    RoundsFile(path, {"date": "first", "commit": "a", "seed": 1}).add(round_of("batch", 1, 200))
    with pytest.raises(NotMeasured, match="another measurement: commit, seed differ"):
        RoundsFile(path, {"date": "first", "commit": "b", "seed": 2})


def test_phases_of_a_batch_are_those_between_its_times():
    times = {"created_at": 100, "in_progress_at": 104, "finalizing_at": 160, "completed_at": 161}
    assert phases({"id": "batch_1", "expired_at": None, **times}) == {"validation_s": 4, "lines_s": 56, "files_s": 1}


def test_requests_outside_of_the_batch_do_not_count():
    samples = [Sample(sent=at, first=at + 0.01, end=at + 0.02) for at in (0.0, 1.0, 2.0, 3.0)]
    run = Run(4.0, 0.1, [*samples, Sample(why=NOT_SENT)], started=100.0)
    assert sent_between(run, 101.0, 102.5) == samples[1:3]
    stream = stream_of(sent_between(run, 101.0, 102.5), {"lines_per_s": 50.0})
    assert stream.figures["ttft_max_ms"] == pytest.approx(10)
    assert set(stream.figures) <= set(STREAM_METRICS)
    panel = panels([Round("alone", 1, stream.figures, stream.ttft_s)])[0]
    assert (list(panel.series[0].x), list(panel.series[0].y)) == ([50, 100], [pytest.approx(10)] * 2)


@pytest.mark.parametrize("samples", [[], [Sample(sent=0.0, end=1.0, why="HTTP/1.1 503")]])
def test_a_stream_with_failures_or_without_requests_is_no_result(samples):
    with pytest.raises(NotMeasured, match=f"of {len(samples)} interactive requests failed"):
        stream_of(samples, {})
