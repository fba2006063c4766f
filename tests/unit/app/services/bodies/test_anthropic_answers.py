"""Answers of Anthropic's Messages, event by event; the SDK's types are the oracle."""

from collections.abc import Iterable
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from app.domain.errors import EngineUnavailable, Unauthenticated
from app.engine.port import TokenUsage
from app.services.bodies.anthropic import messages_request
from app.services.bodies.anthropic_answers import error_type
from app.services.bodies.translated_events import AnswerFacts, TranslatedEvents
from app.settings import LimitSettings
from tests.support.chat_answers import (
    FACTS,
    ChatStream,
    answer,
    call_chunks,
    chunk,
    error_chunk,
    parsed,
    text_chunks,
)

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
ASKED = [{"role": "user", "content": "hi"}]
BODY = {"messages": ASKED, "max_tokens": 9, "stop_sequences": ["END"], "stream": True}
REQUEST = messages_request(BODY, LimitSettings())
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]
END = ["message_delta", "message_stop"]


def stream(chunks: Iterable[dict[str, Any]], facts: AnswerFacts = FACTS, *, done: bool = True) -> TranslatedEvents:
    return TranslatedEvents(ChatStream(chunks, done=done), REQUEST.writer(facts), REQUEST.renaming)


async def told(chunks: Iterable[dict[str, Any]], *, done: bool = True) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which the SDK's types accept."""
    events = parsed([event async for event in stream(chunks, done=done)])
    for event in events:
        if event["type"] != "error":
            EVENT.validate_python(event)
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_text_has_its_events_in_order() -> None:
    events = await told(text_chunks("Sug", "ar"))
    assert kinds(events) == ["message_start", BLOCK[0], BLOCK[1], *BLOCK[1:], *END]
    assert events[0]["message"]["content"] == []
    assert [event["delta"] for event in events[2:4]] == [
        {"type": "text_delta", "text": "Sug"},
        {"type": "text_delta", "text": "ar"},
    ]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


async def test_usage_is_the_recorded_one() -> None:
    """Cached tokens are known at the end only, and are no part of Anthropic's input tokens."""
    events = await told(text_chunks("Sugar"))
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    assert (first["input_tokens"], first["output_tokens"]) == (12, 0)
    assert last == {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
    unknown = AnswerFacts("0f", "pricing", 1, None, lambda: None)
    whole = REQUEST.whole(answer("Sugar"), unknown)
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (12, 3)


CALLED = [
    *(BLOCK[0], BLOCK[1], BLOCK[1], BLOCK[2]),
]


async def test_calls_have_their_events_in_order() -> None:
    events = await told(call_chunks(("t1", "price_of", ['{"item":', '"salt"}']), ("t2", "price_of", ["{", "}"])))
    assert kinds(events) == ["message_start", *CALLED, *CALLED, *END]
    assert events[1]["content_block"] == {"type": "tool_use", "id": "t1", "name": "price_of", "input": {}}
    assert "".join(event["delta"]["partial_json"] for event in events[2:4]) == '{"item":"salt"}'
    assert [event["index"] for event in events if "index" in event] == [0] * 4 + [1] * 4
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_call_after_a_text_closes_the_text() -> None:
    events = await told([chunk({"content": "Wait."}), *call_chunks(("t1", "price_of", ["{", "}"]))])
    assert kinds(events) == ["message_start", *BLOCK, *CALLED, *END]


async def test_a_text_after_a_call_is_a_block_too() -> None:
    *calls, last, usage = call_chunks(("t1", "price_of", ["{", "}"]))
    events = await told([*calls, chunk({"content": "Done."}), last, usage])
    assert [event["content_block"]["type"] for event in events if "content_block" in event] == ["tool_use", "text"]


async def test_an_empty_answer_has_an_empty_text() -> None:
    events = await told(text_chunks())
    assert kinds(events) == ["message_start", BLOCK[0], BLOCK[2], *END]


REASONS: dict[str, tuple[dict[str, Any], tuple[str, str | None]]] = {
    "an end": ({"finish": "stop"}, ("end_turn", None)),
    "a token": ({"finish": "stop", "stop_reason": 2}, ("end_turn", None)),
    "a stop sequence": ({"finish": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
    "a stop of the version": ({"finish": "stop", "stop_reason": "secret"}, ("end_turn", None)),
    "the limit": ({"finish": "length"}, ("max_tokens", None)),
}


@pytest.mark.parametrize(("fields", "reason"), REASONS.values(), ids=REASONS)
async def test_stop_reasons(fields: dict[str, Any], reason: tuple[str, str | None]) -> None:
    delta = (await told(text_chunks("Sug", **fields)))[-2]["delta"]
    whole = REQUEST.whole(answer("Sug", **fields), FACTS)
    assert (delta["stop_reason"], delta["stop_sequence"]) == reason
    assert (whole["stop_reason"], whole["stop_sequence"]) == reason


def test_a_forced_call_is_a_tool_use_and_a_cut_one_is_not() -> None:
    """A chat with a named tool ends with the reason ``stop``."""
    forced = REQUEST.whole(answer("", ("t1", "price_of", "{}"), finish="stop"), FACTS)
    assert (forced["stop_reason"], [block["type"] for block in forced["content"]]) == ("tool_use", ["tool_use"])
    cut = REQUEST.whole(answer("", ("t1", "price_of", '{"a'), finish="length"), FACTS)
    assert (cut["stop_reason"], cut["content"][0]["input"]) == ("max_tokens", {})


WHOLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a text": (answer("Sugar"), text_chunks("Sug", "ar")),
    "nothing": (answer(None), text_chunks()),
    "a stop": (answer("S", stop_reason="END"), text_chunks("S", stop_reason="END")),
    "a text and calls": (
        answer("Wait.", ("t1", "price_of", '{"a":1}'), ("t2", "price_of", "{}"), finish="tool_calls"),
        [
            chunk({"content": "Wait."}),
            *call_chunks(("t1", "price_of", ['{"a":', "1}"]), ("t2", "price_of", ["{}"])),
        ],
    ),
}


@pytest.mark.parametrize(("chat", "chunks"), WHOLE.values(), ids=WHOLE)
async def test_the_sdk_makes_of_a_stream_what_is_answered_whole(
    chat: dict[str, Any], chunks: list[dict[str, Any]]
) -> None:
    whole = REQUEST.whole(chat, FACTS)
    Message.model_validate(whole)
    body = "".join([event async for event in stream(chunks)])
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=body))
    with (
        httpx2.Client(transport=transport) as client,
        anthropic.Anthropic(api_key="x", base_url="http://server", http_client=client) as sdk,
        sdk.messages.stream(model="pricing", max_tokens=9, messages=ASKED) as events,  # type: ignore[arg-type]
    ):
        # The SDK adds the field for refusals by Anthropic.
        assert events.get_final_message().to_dict() == whole | {"stop_details": None}


@pytest.mark.parametrize("chunks", [[], text_chunks("Sug")[:2]])
async def test_an_error_in_a_stream_is_the_last_event(chunks: list[dict[str, Any]]) -> None:
    events = await told([*chunks, error_chunk(), error_chunk()])
    assert kinds(events).count("error") == 1
    error = {"type": "overloaded_error", "message": "The engine stopped."}
    assert events[-1] == {"type": "error", "error": error}


async def test_a_client_error_in_a_stream_has_the_clients_names() -> None:
    error = {"message": "response_format has more parts.", "type": "invalid_request_error", "param": "x", "code": "y"}
    (event,) = await told([{"error": error}])
    assert event["error"] == {"type": "invalid_request_error", "message": "output_config.format has more parts."}


@pytest.mark.parametrize("finish", ["error", "abort"])
async def test_an_answer_that_the_engine_aborted_failed(finish: str) -> None:
    assert kinds(await told(text_chunks("Sug", finish=finish)))[-1] == "error"


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_breaks_off_failed(done: bool) -> None:
    assert (await told(text_chunks("Sug")[:2], done=done))[-1]["error"]["type"] == "overloaded_error"


async def test_an_error_of_the_server_is_told_once() -> None:
    events = stream(text_chunks("Sug"))
    await anext(events)
    await events.aclose()
    (last,) = parsed([events.last_event(Unauthenticated("The key stopped working."))])
    assert last["error"]["type"] == "authentication_error"
    assert events.last_event(EngineUnavailable("no")) == ""


async def test_the_first_usage_may_come_from_the_engine() -> None:
    unknown = AnswerFacts("0f", "pricing", 1, None, lambda: TokenUsage(12, 0, 3, None))
    first, *rest = text_chunks("Sug")
    usage = {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}
    events = parsed([event async for event in stream([first | {"usage": usage}, *rest], unknown)])
    assert events[0]["message"]["usage"]["input_tokens"] == 12


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "invalid_request_error") for status in (400, 405, 408, 409, 410, 415, 422)),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_error_types(status: int, kind: str) -> None:
    assert error_type(status) == kind
