"""Answers of OpenAI's Responses, event by event; the SDK's types are the oracle."""

from collections.abc import Iterable
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.domain.errors import EngineUnavailable, Unauthenticated
from app.services.bodies.responses import responses_request
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
    usage_chunk,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [{"type": "function", "name": "price_of", "parameters": {"type": "object"}, "strict": False}]
REQUEST = responses_request({"input": "hi", "tools": TOOLS, "stream": True}, LimitSettings())


def stream(chunks: Iterable[dict[str, Any]], *, done: bool = True) -> TranslatedEvents:
    return TranslatedEvents(ChatStream(chunks, done=done), REQUEST.writer(FACTS), REQUEST.renaming)


async def told(chunks: Iterable[dict[str, Any]], *, done: bool = True) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which the SDK's types accept, and which are numbered from 0."""
    events = parsed([event async for event in stream(chunks, done=done)])
    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


BEGIN = ["created", "in_progress"]
ADDED = ["output_item.added", "content_part.added"]
DONE = ["output_text.done", "content_part.done", "output_item.done"]


async def test_a_text_has_its_events_in_order() -> None:
    events = await told(text_chunks("Sug", "ar"))
    assert kinds(events) == [*BEGIN, *ADDED, *["output_text.delta"] * 2, *DONE, "completed"]
    assert [event["delta"] for event in events if event["type"].endswith("delta")] == ["Sug", "ar"]
    item = events[-1]["response"]["output"][0]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert item["content"] == [{"type": "output_text", "text": "Sugar", "annotations": [], "logprobs": []}]
    assert (item["status"], events[0]["response"]["status"]) == ("completed", "in_progress")


async def test_usage_is_the_recorded_one() -> None:
    usage = (await told(text_chunks("Sugar")))[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, 3, 15)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    unknown = AnswerFacts("0f", "pricing", 1, None, lambda: None)
    whole = REQUEST.whole(answer("Sugar"), unknown)
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (12, 3)


async def test_an_answer_at_its_limit_is_incomplete() -> None:
    events = await told(text_chunks("Sug", finish="length"))
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


CALL = ["output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done", "output_item.done"]


async def test_calls_have_their_events_in_order() -> None:
    events = await told(call_chunks(("c1", "price_of", ['{"item":', '"salt"}']), ("c2", "price_of", ["{", "}"])))
    assert kinds(events) == [*BEGIN, *CALL, *CALL, "completed"]
    first, second = events[-1]["response"]["output"]
    assert (first["call_id"], first["name"], first["arguments"]) == ("c1", "price_of", '{"item":"salt"}')
    assert (second["call_id"], second["arguments"], second["status"]) == ("c2", "{}", "completed")
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 5 + [1] * 5


async def test_a_call_after_a_text_closes_the_text() -> None:
    chunks = [chunk({"role": "assistant", "content": "Wait."}), *call_chunks(("c1", "price_of", ["{", "}"]))]
    events = await told(chunks)
    assert kinds(events) == [*BEGIN, *ADDED, "output_text.delta", *DONE, *CALL, "completed"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message", "function_call"]


async def test_a_text_after_a_call_is_an_item_too() -> None:
    *calls, last, usage = call_chunks(("c1", "price_of", ["{", "}"]))
    events = await told([*calls, chunk({"content": "Done."}), last, usage])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call", "message"]


async def test_an_empty_answer_has_an_empty_text() -> None:
    events = await told(text_chunks())
    assert kinds(events) == [*BEGIN, *ADDED, *DONE, "completed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


async def test_logprobs_come_with_their_text() -> None:
    top = [{"token": "S", "logprob": -0.5, "bytes": [83]}]
    logprobs = {"content": [{"token": "S", "logprob": -0.5, "bytes": [83], "top_logprobs": top}]}
    chunks = [chunk({"content": "S"}) | {"choices": [{"index": 0, "delta": {"content": "S"}, "logprobs": logprobs}]}]
    events = await told([*chunks, chunk({}, finish="stop"), usage_chunk()])
    (delta,) = [event for event in events if event["type"].endswith("text.delta")]
    assert delta["logprobs"][0]["logprob"] == -0.5
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"][0]["top_logprobs"][0]["token"] == "S"
    whole = REQUEST.whole(answer("S", logprobs=logprobs), FACTS)
    assert whole["output"][0]["content"][0]["logprobs"] == delta["logprobs"]


@pytest.mark.parametrize("chunks", [[], [chunk({"role": "assistant", "content": ""})], text_chunks("Sug")[:2]])
async def test_an_error_in_a_stream_fails_the_response(chunks: list[dict[str, Any]]) -> None:
    events = await told([*chunks, error_chunk(param="response_format")])
    assert kinds(events)[:2] == BEGIN
    assert kinds(events)[-2:] == ["error", "failed"]
    assert events[-2]["param"] == "text.format"
    response = events[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert len(response["output"]) == (len(chunks) > 1)


async def test_an_error_after_an_error_is_not_told() -> None:
    events = await told([error_chunk(), error_chunk()])
    assert kinds(events).count("failed") == 1


@pytest.mark.parametrize("finish", ["error", "abort"])
async def test_an_answer_that_the_engine_aborted_failed(finish: str) -> None:
    assert kinds(await told(text_chunks("Sug", finish=finish)))[-2:] == ["error", "failed"]


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_breaks_off_failed(done: bool) -> None:
    events = await told(text_chunks("Sug")[:2], done=done)
    assert kinds(events)[-2:] == ["error", "failed"]
    assert events[-2]["code"] == "engine_unavailable"


async def test_an_error_of_the_server_is_told_once() -> None:
    events = stream(text_chunks("Sug"))
    first = [await anext(events), await anext(events)]
    await events.aclose()
    told_last = parsed([events.last_event(Unauthenticated("The key stopped working."))])
    assert kinds(parsed(first) + told_last) == [*BEGIN, "error", "failed"]
    assert told_last[0]["code"] == "invalid_api_key"
    assert events.last_event(EngineUnavailable("no")) == ""


async def test_closing_closes_the_source_and_reading_reads_it_whole() -> None:
    source = ChatStream(text_chunks("Sug"))
    events = TranslatedEvents(source, REQUEST.writer(FACTS), REQUEST.renaming)
    await anext(events)
    await events.aclose()
    assert source.closed
    assert [event async for event in events] == []
    source = ChatStream(text_chunks("Sug"))
    assert [event async for event in TranslatedEvents(source, REQUEST.writer(FACTS), REQUEST.renaming)]
    assert source.exhausted


WHOLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a text": (answer("Sugar"), text_chunks("Sug", "ar")),
    "nothing": (answer(""), text_chunks()),
    "null": (answer(None), text_chunks()),
    "a text at its limit": (answer("Sug", finish="length"), text_chunks("Sug", finish="length")),
    "a call": (
        answer(None, ("c1", "price_of", '{"a":1}'), finish="tool_calls"),
        call_chunks(("c1", "price_of", ['{"a":', "1}"])),
    ),
    "a call at its limit": (
        answer("", ("c1", "price_of", '{"a'), finish="length"),
        call_chunks(("c1", "price_of", ['{"a']), finish="length"),
    ),
    "two calls": (
        answer(None, ("c1", "price_of", "{}"), ("c2", "price_of", "{}"), finish="tool_calls"),
        call_chunks(("c1", "price_of", ["{}"]), ("c2", "price_of", ["{}"])),
    ),
}


@pytest.mark.parametrize(("chat", "chunks"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_answer_equals_the_end_of_its_stream(chat: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    whole = REQUEST.whole(chat, FACTS)
    Response.model_validate(whole)
    last = (await told(chunks))[-1]["response"]
    assert whole | {"completed_at": None} == last | {"completed_at": None}
    assert (whole["id"], whole["model"], whole["store"]) == ("resp_0f", "pricing", False)


async def test_the_sdk_puts_a_stream_together() -> None:
    chunks = [chunk({"content": "Wait."}), *call_chunks(("c1", "price_of", ['{"item":', '"salt"}']))]
    body = "".join([event async for event in stream(chunks)])
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=body))
    with (
        httpx2.Client(transport=transport) as client,
        openai.OpenAI(api_key="x", base_url="http://server/v1", http_client=client) as sdk,
        sdk.responses.stream(model="pricing", input="hi", tools=TOOLS) as events,  # type: ignore[arg-type]
    ):
        response = events.get_final_response()
    assert response.output_text == "Wait."
    assert response.output[1].arguments == '{"item":"salt"}'
