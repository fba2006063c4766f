"""Closed loops built from an open loop's requests, and look-ups of activity over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench import timeline
from app.lab.bench.open_loop import NOT_SENT, Request, Sample
from app.lab.bench.timeline import NotMeasured, Script
from tests.support.paced import served

CUT_OFF = "no answer before the end of the run"

times = st.lists(st.floats(0, 100), min_size=1, max_size=30).map(sorted)


def stream(*tokens: float, **rest):
    return served("stream", 0.0, list(tokens), **rest).sample


def test_each_request_of_a_chain_follows_the_one_before():
    script = Script()
    script.add("alone", Request(1.0))
    script.chain("first", [Request(0.0), Request(0.0), Request(0.0)])
    script.chain("second", [Request(0.0), Request(0.0)])
    script.chain("unknown", [])
    assert [request.after for request in script.requests] == [None, None, 1, 2, None, 4]
    assert script.groups == ["alone", *["first"] * 3, *["second"] * 2]


def test_a_chain_that_ran_out_of_requests_was_no_closed_loop():
    script = Script()
    script.chain("one", [Request(0.0), Request(0.0)])
    script.require_unfinished([Sample(end=1.0), Sample(why=NOT_SENT)])
    with pytest.raises(NotMeasured, match="A client of one"):
        script.require_unfinished([Sample(end=1.0), Sample(end=2.0)])


def test_samples_are_told_with_their_requests():
    script = Script()
    script.add("a", Request(0.0, prompt=[1, 2, 3], output_tokens=7))
    (one,) = script.served([Sample(sent=0.5)])
    assert (one.group, one.prompt_tokens, one.output_tokens, one.sample.sent) == ("a", 3, 7, 0.5)


@given(times)
def test_arrivals_are_when_the_tokens_came(tokens):
    assert timeline.arrivals(stream(*tokens)) == pytest.approx(tokens)


def test_nothing_arrived_of_a_request_without_a_token():
    assert timeline.arrivals(Sample(sent=1.0, end=2.0, why="HTTP/1.1 503")) == []


def test_a_request_that_was_not_sent_is_in_no_group():
    sent, unsent = served("a", 1.0, [2.0]), served("a", None, [], why=NOT_SENT)
    assert timeline.of("a", [sent, unsent, served("b", 1.0, [2.0])]) == [sent]
    with pytest.raises(NotMeasured, match="A request of a failed: not sent"):
        timeline.require_answered([sent, unsent])


def test_gaps_overlap_the_interval_within_one_stream():
    streams = [stream(0.0, 1.0, 2.0), stream(5.0, 6.5)]
    assert timeline.gaps_between(streams, 0.0, 10.0) == [1.0, 1.0, 1.5]
    assert timeline.gaps_between(streams, 1.5, 5.5) == [1.0, 1.5]
    assert timeline.gaps_between(streams, 2.0, 5.0) == []
    assert timeline.gaps_before(streams, 1.5) == [1.0]
    assert timeline.gaps_before(streams, 6.5) == [1.0, 1.0, 1.5]


def test_a_stream_that_runs_all_the_time_is_cut_off_after_it():
    timeline.require_running([stream(0.0, 1.0, 5.0, 9.0, end=9.5, why=CUT_OFF)], 1.0, 8.0)
    timeline.require_running([stream(0.0, 4.0), stream(4.5, 9.0)], 1.0, 8.0)


@pytest.mark.parametrize(
    "streams",
    [
        [],
        [stream(0.0, 1.0, 7.0)],  # ended early
        [stream(2.0, 9.0)],  # began late
        [stream(0.0, 3.0), stream(5.0, 9.0)],  # gap between the two streams
        [stream(0.0, 3.0, why="the server closed the connection"), stream(3.1, 9.0)],
    ],
)
def test_a_stream_that_did_not_run_all_the_time_shows_nothing(streams):
    with pytest.raises(NotMeasured, match="The stream"):
        timeline.require_running(streams, 1.0, 8.0)


@given(st.lists(times, max_size=5), st.tuples(*[st.floats(0, 100)] * 3).map(sorted))
def test_tokens_of_two_intervals_are_those_of_both(tokens, bounds):
    begin, middle, end = bounds
    requests = [served("a", 0.0, one) for one in tokens]
    parts = [timeline.tokens_between(requests, *span) for span in ((begin, middle), (middle, end), (begin, end))]
    assert tuple(map(sum, zip(*parts[:2], strict=True))) == parts[2]


def test_a_prompt_counts_when_its_first_token_comes():
    requests = [served("a", 0.0, [1.0, 2.0, 3.0]), served("a", 0.0, [4.0])]
    assert timeline.tokens_between(requests, 2.0, 9.0) == (10, 3)
    assert timeline.tokens_between(requests, 1.0, 2.0) == (10, 1)
