"""HTTP/1.1 client of the load generators: written requests and parsed answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lab.bench.wire import Answer, Body, LoadError, completion, http_request

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Tenora-Load-Ms: 7\r\n\r\n"


def test_the_request_is_well_formed():
    head, _, body = http_request("127.0.0.1", 80, "/v1/completions", {"x-key": "a"}, {"n": 1}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:80\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert head.endswith(b"x-key: a")
    assert json.loads(body) == {"n": 1}


def test_a_completion_is_greedy_and_of_exactly_so_many_tokens():
    body = completion("pricing", [1, 2], 7)
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]) == (7, 0, True, True)
    assert "stream" not in completion("pricing", [1, 2], 7, stream=False)


@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=8),
    st.lists(st.integers(min_value=1, max_value=40), max_size=30),
    st.integers(min_value=1, max_value=30),
)
def test_events_survive_any_split_into_chunks_and_segments(texts, cuts, chunk):
    events = [b"data: " + json.dumps({"text": text}).encode() for text in texts]
    content = b"\n\n".join([*events, b"data: [DONE]"]) + b"\n\n"
    chunks = [content[start : start + chunk] for start in range(0, len(content), chunk)]
    answer = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
    body = Body()
    for cut in cuts:
        body.feed(answer[:cut])
        answer = answer[cut:]
    body.feed(answer)
    assert body.done
    assert body.events == [*events, b"data: [DONE]"]
    assert body.headers["x-tenora-load-ms"] == "7"


@given(st.text(max_size=50), st.lists(st.integers(min_value=1, max_value=40), max_size=10))
def test_a_body_of_a_given_length_survives_any_split(text, cuts):
    content = json.dumps({"text": text, "usage": {"completion_tokens": 3}}).encode()
    rest = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)
    answer, done = Answer(), False
    for cut in cuts:
        done = answer.feed(rest[:cut])
        rest = rest[cut:]
    if not done:
        done = answer.feed(rest)
    assert done
    assert json.loads(answer.last)["text"] == text
    assert answer.tokens() == 3
    assert len(answer.arrivals) == 1


def test_an_error_is_read_to_its_end_and_told():
    answer = Answer()
    assert not answer.feed(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\nretry-after: 2\r\n\r\n")
    assert answer.feed(b"try later")
    assert answer.body.headers["retry-after"] == "2"
    with pytest.raises(LoadError, match=r"^HTTP/1\.1 503 try later$"):
        answer.tokens()


@pytest.mark.parametrize("last", ["{}", '{"error": {"message": "died"}}', "nonsense", '{"usage": null}'])
def test_a_last_event_that_is_no_usage_is_no_answer(last):
    answer = Answer()
    event = f"data: {last}\n\n".encode()
    assert answer.feed(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
    with pytest.raises(LoadError, match="The answer ended with"):
        answer.tokens()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\n{}", b"SSH-2.0-x\r\ncontent-length: 2\r\n\r\n{}"]
)
def test_what_is_no_such_answer_is_refused(head):
    with pytest.raises(LoadError):
        Body().feed(head)
