"""Inference headers: the caller's deadline, and the timing of a cold load."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from app.api.inference_headers import deadline_of, ignored_headers, load_headers
from app.api.streaming import answer_response
from app.domain.errors import InvalidRequest
from app.domain.load_phases import LoadPhases
from app.services.serving.served import Served

LOAD = LoadPhases(fetch_s=0.5, stage_s=0.25, wait_s=0.0625, copy_s=0.01)

#: Grammar of https://www.w3.org/TR/server-timing/: metric-name *( OWS ";" OWS server-timing-param ), comma-separated.
_METRIC = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+;dur=[0-9]+(\.[0-9]+)?"


def asked(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_nobody_has_to_give_a_deadline() -> None:
    assert deadline_of(asked()) is None


def test_what_a_library_sends_by_itself_is_no_deadline() -> None:
    assert deadline_of(asked(x_stainless_read_timeout="600", x_stainless_timeout="5")) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("2", 2.0), ("0.25", 0.25), (".5", 0.5), ("7.", 7.0), ("3600", 3600.0)),
        *(("2353.322697352086", 2353.322697352086), ("0.30000000000000004", 0.1 + 0.2), ("1." + "0" * 5000, 1.0)),
    ],
)
def test_seconds_are_read(text: str, seconds: float) -> None:
    assert deadline_of(asked(x_request_timeout=text)) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "-1", "+1", "3600.1", "1e2", "nan", "inf", "1_0", "1s", "1,5", "0x10", "²", ".", " "]
)
def test_what_is_no_wait_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^x-request-timeout is .* must be a number of seconds above 0") as caught:
        deadline_of(asked(x_request_timeout=text))
    assert caught.value.param == "x-request-timeout"


@given(st.text(alphabet=st.characters(codec="latin-1")))
def test_any_text_is_a_number_in_range_or_refused(text: str) -> None:
    try:
        seconds = deadline_of(asked(x_request_timeout=text))
    except InvalidRequest as error:
        assert len(error.message) < 300  # noqa: PT017 - both outcomes are allowed
    else:
        assert seconds is not None
        assert 0 < seconds <= 3600


def test_a_warm_answer_says_nothing_of_loads() -> None:
    assert load_headers(None) == {}
    assert not {"x-tenora-load-ms", "server-timing"} & set(answer_response(Served({}, "prices@1")).headers)


def test_a_cold_answer_says_how_long_each_phase_took() -> None:
    assert load_headers(LOAD) == {
        "x-tenora-load-ms": "822",
        "server-timing": "fetch;dur=500.0, stage;dur=250.0, wait;dur=62.5, copy;dur=10.0",
    }


@given(st.builds(LoadPhases, *[st.floats(0, 10_000)] * 4))
def test_the_phases_are_in_w3cs_syntax_and_add_up(load: LoadPhases) -> None:
    headers = load_headers(load)
    assert re.fullmatch(rf"{_METRIC}(, {_METRIC})*", headers["server-timing"])
    parts = [float(part.partition("=")[2]) for part in headers["server-timing"].split(", ")]
    assert abs(sum(parts) - int(headers["x-tenora-load-ms"])) < 1


def test_what_was_ignored_is_named_once() -> None:
    names = ["metadata", "messages[].tool_calls[].index", "messages[].tool_calls[].index", "metadata"]
    assert ignored_headers(names) == {"x-tenora-ignored": "metadata, messages[].tool_calls[].index"}
    assert ignored_headers(iter(())) == {}
    assert "x-tenora-ignored" not in answer_response(Served({}, "prices@1")).headers
    answer = answer_response(Served({}, "prices@1", ignored=iter(names)))
    assert answer.headers["x-tenora-ignored"] == "metadata, messages[].tool_calls[].index"


@pytest.mark.parametrize(
    "name", ["messages[].a\r\nx-evil: 1", "messages[].ü", "messages[].", "a,b", "x" * 101, "", "\0"]
)
def test_a_name_that_a_client_made_up_is_no_header(name: str) -> None:
    value = ignored_headers([name, "store"])["x-tenora-ignored"]
    assert value in ("?, store", f"{name}, store")
    assert re.fullmatch(r"[ -~]+", value)


@given(st.lists(st.text(min_size=1), max_size=100), st.integers(0, 5000))
def test_however_many_names_the_header_is_short_and_safe(names: list[str], many: int) -> None:
    headers = ignored_headers([*names, *(f"messages[].key{number}" for number in range(many))])
    value = headers.get("x-tenora-ignored", "")
    assert re.fullmatch(r"[ -~]*", value)
    assert len(value) <= 1100
    assert len(value.split(", ")) <= 33


def test_the_names_that_have_no_room_are_three_dots() -> None:
    value = ignored_headers(f"messages[].key{number}" for number in range(10_000))["x-tenora-ignored"]
    assert value.endswith(", messages[].key31, ...")


async def test_streams_have_the_headers_too() -> None:
    async def events():
        yield "data: [DONE]\n\n"

    response = answer_response(Served(events(), "prices@1", LOAD))
    assert response.headers["x-tenora-load-ms"] == "822"
    assert response.headers["content-type"].startswith("text/event-stream")
