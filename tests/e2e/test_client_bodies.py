"""Default bodies of popular clients against the real engine: accepted, ignored, refused and null fields."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = {"role": "user", "content": "[INST] What is sugar? [/INST]"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
#: Fields that are null in OpenAI's own answers.
OPENAIS = {"logprobs", "finish_reason", "content", "refusal"}
LORAXS = {"seed", "generated_text", "details"}


@pytest.fixture(scope="module")
def client(server: Server, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(keys["pricing"]) as client:
        yield client


def chat(client: httpx.Client, *turns: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": "pricing", "max_tokens": 4, "temperature": 0, "messages": [QUESTION, *turns], **fields}
    return client.post(CHAT, json=body)


def called(function: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Turn of an assistant that called a tool."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL | fields | {"function": CALL["function"] | (function or {})}],
    }


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Sweet.", **fields}


def nulls(value: Any) -> set[str]:
    """Return the names of all null fields of a JSON value."""
    if isinstance(value, list):
        return set().union(*map(nulls, value))
    if not isinstance(value, dict):
        return set()
    return {name for name, item in value.items() if item is None}.union(*map(nulls, value.values()))


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data:").strip() for line in answer.text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


HISTORIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an answer with its provider's fields": (
        [said(provider_specific_fields={"reasoning": None})],
        "messages[].provider_specific_fields",
    ),
    "an answer that was parsed": ([said(parsed={"price": "low"}, refusal=None)], "messages[].parsed"),
    "an answer with its reasons": (
        [said(reasoning_content="", reasoning="why", annotations=[], audio={"id": "a"}, id="m1")],
        "messages[].reasoning_content, messages[].reasoning, messages[].annotations, messages[].audio, messages[].id",
    ),
    "a call of the older kind": (
        [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, {"role": "user", "content": "5"}],
        "messages[].function_call",
    ),
    "a call with its place": ([called(index=0), RESULT], "messages[].tool_calls[].index"),
    "a call whose arguments were parsed": (
        [called({"parsed_arguments": {}}), RESULT],
        "messages[].tool_calls[].function.parsed_arguments",
    ),
    "a part for a cache": (
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}],
        "messages[].content[].cache_control",
    ),
    "a tool's name": ([called(), RESULT | {"name": "get_weather"}], ""),
    "a call without arguments": ([called({"arguments": ""}), RESULT], ""),
    "a call with blank arguments": ([called({"arguments": " \n"}), RESULT], ""),
    "a call that was cut off": ([called({"arguments": '{"city": "Par'}), RESULT], ""),
    "a call beside no content": ([called() | {"content": []}, RESULT], ""),
    "an assistant that said nothing": ([{"role": "assistant", "content": None}, QUESTION], ""),
    "no content at all": ([{"role": "assistant", "content": []}, {"role": "user", "content": []}], ""),
    "no calls": ([said(tool_calls=[])], ""),
}


@pytest.mark.parametrize(("turns", "named"), HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_sent_back_is_read(client: httpx.Client, turns: list[dict[str, Any]], named: str, stream: bool) -> None:
    answer = chat(client, *turns, stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-tenora-ignored", "") == named
    assert not any("error" in event for event in events(answer))


def test_what_is_ignored_is_not_read(client: httpx.Client) -> None:
    plain = chat(client, said(), max_tokens=16).json()
    added = said(reasoning="Salt is salty.", secret="pepper", parsed={"x": "y" * 100})
    noted = chat(client, added, max_tokens=16, metadata={"a": "b"}, reasoning_effort="high").json()
    assert (noted["choices"], noted["usage"]) == (plain["choices"], plain["usage"])


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "notes on the platform": (
        {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "u"},
        "metadata, store, service_tier, safety_identifier",
    ),
    "notes for caches": ({"prompt_cache_key": "k", "reasoning_effort": "low"}, "prompt_cache_key, reasoning_effort"),
    "no tools": ({"tools": []}, ""),
    "no tools to choose from": (
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        "tool_choice, parallel_tool_calls",
    ),
    "five stop strings": ({"stop": ["a1", "b2", "c3", "d4", "e5"]}, ""),
    "sixteen stop strings": ({"stop": [f"{number:016x}" for number in range(16)]}, ""),
    "the longest stop strings": ({"stop": ["\u00e9" * 128] * 16}, ""),
}


@pytest.mark.parametrize(("fields", "named"), FIELDS.values(), ids=FIELDS)
def test_fields_that_clients_send_by_themselves(client: httpx.Client, fields: dict[str, Any], named: str) -> None:
    answer = chat(client, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-tenora-ignored", "") == named


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_sixteen_stop_strings_stops(client: httpx.Client, stream: bool) -> None:
    prompt = QUESTION["content"]
    asked = {"model": "pricing", "prompt": prompt, "max_tokens": 40, "temperature": 0}
    text = client.post(COMPLETIONS, json=asked).json()["choices"][0]["text"]
    last = text[10:14]
    assert len(last) == 4
    stops = [f"{number:016x}" for number in range(15)] + [last]
    answer = client.post(COMPLETIONS, json=asked | {"stop": stops, "stream": stream})
    assert answer.status_code == 200, answer.text
    chunks = events(answer) if stream else [answer.json()]
    cut = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert cut == text[: text.index(last)]
    parameters = {"adapter_id": "pricing", "max_new_tokens": 40, "temperature": 0, "stop": stops}
    generated = client.post("/generate", json={"inputs": prompt, "parameters": parameters}).json()["generated_text"]
    # LoRAX keeps the stop string.
    assert generated == cut + last


@pytest.mark.parametrize("route", ["/generate", "/generate_stream", "/"])
def test_typical_p_is_ignored_and_named(client: httpx.Client, route: str) -> None:
    parameters = {"adapter_id": "pricing", "max_new_tokens": 4, "temperature": 0.8, "top_p": 0.95, "typical_p": 0.95}
    parameters |= {"do_sample": False, "return_full_text": False, "stop": [], "watermark": False}
    answer = client.post(route, json={"inputs": "[INST] hi [/INST]", "parameters": parameters})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-tenora-ignored"] == "parameters.typical_p"
    refused = client.post(COMPLETIONS, json={"prompt": "hi", "typical_p": 0.95})
    assert refused.json()["error"]["code"] == "unsupported_field"


def test_whole_answers_have_no_nulls_but_openais(client: httpx.Client) -> None:
    completion = client.post(COMPLETIONS, json={"model": "pricing", "prompt": "x", "max_tokens": 4}).json()
    assert nulls(completion) <= OPENAIS
    assert set(completion["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
    answer = chat(client).json()
    assert nulls(answer) <= OPENAIS
    assert set(answer["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert set(answer["choices"][0]["message"]) == {"role", "content", "refusal"}
    assert set(answer) - {"system_fingerprint"} == {"id", "object", "created", "model", "choices", "usage"}


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "max_tokens": 60,
}


def test_a_call_that_is_sent_back_as_it_came(client: httpx.Client) -> None:
    for fields in (TOOLS, TOOLS | {"max_tokens": 3}):
        message = chat(client, **fields).json()["choices"][0]["message"]
        assert nulls(message) <= {"content", "refusal"}
        assert message["tool_calls"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        again = chat(client, message, result, tools=TOOLS["tools"], tool_choice="none")
        assert again.status_code == 200, again.text
        assert "x-tenora-ignored" not in again.headers


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2, "echo": True}, {"return_token_ids": True}, {"stop": "e"}])
@pytest.mark.parametrize("usage", [{}, {"include_usage": True, "continuous_usage_stats": True}])
def test_streams_of_completions_have_no_nulls_but_openais(
    client: httpx.Client, fields: dict[str, Any], usage: dict[str, bool]
) -> None:
    asked = {"model": "pricing", "prompt": "x", "max_tokens": 4, "temperature": 0, "stream": True}
    chunks = events(client.post(COMPLETIONS, json=asked | fields | {"stream_options": usage}))
    assert {
        name for chunk in chunks for name in nulls([one | {"logprobs": None} for one in chunk["choices"]])
    } <= OPENAIS
    assert not any(nulls(chunk | {"choices": None}) - {"choices"} for chunk in chunks)
    assert all({"finish_reason", "logprobs"} <= set(choice) for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("fields", [{}, TOOLS, {"logprobs": True, "top_logprobs": 2}, {"return_token_ids": True}])
@pytest.mark.parametrize("usage", [{}, {"include_usage": True, "continuous_usage_stats": True}])
def test_streams_of_chats_have_no_nulls_but_openais(
    client: httpx.Client, fields: dict[str, Any], usage: dict[str, bool]
) -> None:
    chunks = events(chat(client, stream=True, stream_options=usage, **fields))
    # A busy server may send all tokens in one event, after the one with the role.
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] in ("stop", "length", "tool_calls")
    assert nulls(chunks) <= OPENAIS
    assert all({"finish_reason", "logprobs", "delta"} <= set(choice) for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("details", [False, True])
def test_answers_in_loraxs_shape_have_no_nulls_but_loraxs(client: httpx.Client, details: bool) -> None:
    parameters = {"adapter_id": "pricing", "max_new_tokens": 4, "details": details}
    body = {"inputs": "x", "parameters": parameters}
    assert nulls(client.post("/generate", json=body).json()) <= LORAXS
    assert nulls(client.post("/", json=body).json()) <= LORAXS
    streamed = events(client.post("/generate_stream", json=body))
    assert nulls(streamed) <= LORAXS
    assert all({"token", "generated_text", "details"} == set(event) for event in streamed)


def test_a_prompt_beyond_the_context_has_a_code(client: httpx.Client) -> None:
    """The prompts are text, text above the size limit, tokens, and exactly as many tokens as the context has."""
    model = client.get("/v1/models/pricing")
    assert model.status_code == 200
    longest = context_length(client)
    prompts: list[Any] = ["x y " * longest, "x y " * 60_000, [5] * (longest + 1), [5] * longest]
    for stream in (False, True):
        for prompt in prompts:
            error = refusal(client.post(COMPLETIONS, json={"model": "pricing", "prompt": prompt, "stream": stream}))
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert str(longest) in error["message"]
            assert "parameter=" not in error["message"]
        many = {"role": "user", "content": "x y " * longest}
        error = refusal(chat(client, many, stream=stream))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    for route in ("/generate", "/generate_stream", "/"):
        body = {"inputs": "x y " * longest, "parameters": {"adapter_id": "pricing"}}
        answer = client.post(route, json=body)
        assert (answer.status_code, answer.json()["error_type"]) == (400, "validation")
        assert str(longest) in answer.json()["error"]


def refusal(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def context_length(client: httpx.Client) -> int:
    """Return the context length stated by the error for too many tokens."""
    error = refusal(client.post(COMPLETIONS, json={"model": "pricing", "prompt": [5] * 100_000}))
    return int(error["message"].split(" tokens")[0].split()[-1])


def test_a_prompt_that_leaves_room_for_one_token_is_answered(client: httpx.Client) -> None:
    body = {"model": "pricing", "prompt": [5] * (context_length(client) - 1), "max_tokens": 9, "ignore_eos": True}
    assert client.post(COMPLETIONS, json=body).json()["usage"]["completion_tokens"] == 1
