"""Requests of OpenAI's Responses become chats, or are refused by the client's names."""

import json
from typing import Any

import pytest

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.responses import ResponsesRequest, responses_request
from app.settings import LimitSettings

LIMITS = LimitSettings()
SCHEMA = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOL = {"type": "function", "name": "price_of", "description": "A price.", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Sweet.", "annotations": [], "logprobs": []}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "price_of", "arguments": '{"item": "salt"}'}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "price_of", "arguments": '{"item": "salt"}'}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "two euros"}
CHAT_OUTPUT = {"role": "tool", "tool_call_id": "c1", "content": "two euros"}


def translated(value: Any = "hi", **fields: Any) -> ResponsesRequest:
    return responses_request({"model": "pricing", "input": value, **fields}, LIMITS)


def turns(value: Any, **fields: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = translated(value, **fields).chat["messages"]
    return messages


def text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": content}]}


def test_a_text_is_the_users() -> None:
    assert turns("hi") == [{"role": "user", "content": "hi"}]


def test_instructions_are_a_system_message_in_front() -> None:
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert turns(items, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]


def test_empty_instructions_count_as_not_sent() -> None:
    assert turns("hi", instructions="") == turns("hi")


def test_messages_keep_their_order_and_their_texts() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        SAID,
        {"type": "message", "role": "user", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert turns(items) == [
        {"role": "user", "content": parts},
        text("assistant", "Sweet."),
        {"role": "user", "content": "c"},
        {"role": "user", "content": "d"},
    ]


def test_calls_join_the_message_in_front_of_them() -> None:
    second = CALL | {"call_id": "c2", "id": "fc_2"}
    items = [{"role": "user", "content": "?"}, SAID, CALL, second, OUTPUT, OUTPUT | {"call_id": "c2"}]
    assert turns(items)[1:] == [
        text("assistant", "Sweet.") | {"tool_calls": [CHAT_CALL, CHAT_CALL | {"id": "c2"}]},
        CHAT_OUTPUT,
        CHAT_OUTPUT | {"tool_call_id": "c2"},
    ]


def test_a_call_without_a_message_begins_one() -> None:
    assert turns([{"role": "user", "content": "?"}, CALL, OUTPUT])[1:] == [
        {"role": "assistant", "tool_calls": [CHAT_CALL]},
        CHAT_OUTPUT,
    ]


def test_an_output_may_have_parts() -> None:
    output = OUTPUT | {"output": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "euros"}]}
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "euros"}]
    assert turns([CALL, output])[1] == CHAT_OUTPUT | {"content": parts}


def test_reasoning_is_ignored_and_named() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    request = translated([{"role": "user", "content": "?"}, reasoning, SAID, {"role": "user", "content": "!"}])
    assert [turn["role"] for turn in request.chat["messages"]] == ["user", "assistant", "user"]
    assert {"input[].reasoning", "input[].id", "input[].status"} <= set(request.ignored)


def test_fields_become_those_of_a_chat() -> None:
    request = translated(
        max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=4, seed=1, stop=["x"], stream=True, tools=[TOOL],
        tool_choice={"type": "function", "name": "price_of"}, parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "advice", "schema": SCHEMA, "strict": True}},
        include=["message.output_text.logprobs"], top_logprobs=2,
    )  # fmt: skip
    assert request.chat == {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9,
        "top_k": 4, "seed": 1, "stop": ["x"], "stream": True, "stream_options": {"include_usage": True},
        "tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "price_of"}},
        "parallel_tool_calls": False, "logprobs": True, "top_logprobs": 2,
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "advice", "schema": SCHEMA, "strict": True}
        },
    }  # fmt: skip


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_a_tool_choice_by_word_is_kept(choice: str) -> None:
    assert translated(tools=[TOOL], tool_choice=choice).chat["tool_choice"] == choice


@pytest.mark.parametrize("form", [{"type": "text"}, {"type": "json_object"}])
def test_a_format_without_a_schema_is_kept(form: dict[str, str]) -> None:
    assert translated(text={"format": form, "verbosity": "medium"}).chat["response_format"] == form


def test_fields_without_effect_are_named() -> None:
    request = translated(
        store=True, reasoning={"effort": "low"}, service_tier="auto", safety_identifier="u", prompt_cache_key="k",
        max_tool_calls=3, include=["reasoning.encrypted_content"], stream=True,
        stream_options={"include_obfuscation": False}, parallel_tool_calls=True, tools=[],
    )  # fmt: skip
    assert set(request.ignored) == {
        "store", "reasoning", "service_tier", "safety_identifier", "prompt_cache_key", "max_tool_calls", "include[]",
        "stream_options.include_obfuscation", "parallel_tool_calls",
    }  # fmt: skip


def test_keys_inside_tools_are_ignored_as_in_a_chat() -> None:
    request = translated(tools=[TOOL | {"output_schema": {}}])
    assert request.chat["tools"] == [CHAT_TOOL]
    assert request.ignored == ("tools[].output_schema",)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an item reference": (
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        "input.0.type",
        "providerOptions.openai.store = false",
    ),
    "a former response": ({"previous_response_id": "resp_1"}, "previous_response_id", "providerOptions.openai.store"),
    "a conversation": ({"conversation": "conv_1"}, "conversation", "Send the whole conversation in input"),
    "a run in the background": ({"background": True}, "background", "false"),
    "a stored prompt": ({"prompt": {"id": "p"}}, "prompt", "no prompt templates"),
    "a hosted tool": ({"tools": [{"type": "web_search"}]}, "tools.0.type", "no hosted tools"),
    "a tool of MCP": ({"tools": [TOOL, {"type": "mcp", "server_url": "x"}]}, "tools.1.type", "no hosted tools"),
    "a choice of a hosted tool": (
        {"tools": [TOOL], "tool_choice": {"type": "web_search"}},
        "tool_choice.type",
        "'function'",
    ),
    "a choice of an absent tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "nope"}},
        "tool_choice",
        "not in tools",
    ),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/"}]}]},
        "input.0.content.0.type",
        "The base reads text only",
    ),
    "a file in an output": (
        {"input": [CALL, OUTPUT | {"output": [{"type": "input_file", "file_id": "x"}]}]},
        "input.1.output.0.type",
        "The base reads text only",
    ),
    "a call of a hosted tool": (
        {"input": [{"type": "computer_call", "id": "x"}]},
        "input.0.type",
        "'computer_call'",
    ),
    "a type that is no text": ({"input": [{"type": {}, "role": "user", "content": "x"}]}, "input.0.type", "object"),
    "a role of its own": ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "'tool'"),
    "a role that is no text": ({"input": [{"role": ["user"], "content": "x"}]}, "input.0.role", "array"),
    "no content": ({"input": [{"role": "user"}]}, "input.0.content", "missing"),
    "content of another kind": ({"input": [{"role": "user", "content": 5}]}, "input.0.content", "5"),
    "no items": ({"input": []}, "input", "at least one item"),
    "items of another kind": ({"input": 5}, "input", "5"),
    "an item that is a text": ({"input": ["x"]}, "input.0", "object"),
    "only reasoning": ({"input": [{"type": "reasoning"}]}, "input", "1 to 2048"),
    "no input": ({"input": None}, "input", "missing"),
    "a call without arguments": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
        "input.0.arguments",
        "missing",
    ),
    "arguments that are no text": ({"input": [CALL | {"arguments": {}}]}, "input.0.arguments", "string"),
    "deep arguments": ({"input": [CALL | {"arguments": '{"a":' * 200 + "1" + "}" * 200}]}, "input", "too deeply"),
    "an output without its call": (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        "input.0.call_id",
        "missing",
    ),
    "too many items": ({"input": [{"role": "user", "content": "x"}] * 2049}, "input", "2048"),
    "a name of a tool": ({"tools": [TOOL | {"name": "a b"}]}, "tools.0.name", "a b"),
    "a schema of a tool": ({"tools": [TOOL | {"parameters": 5}]}, "tools.0.parameters", "JSON schema"),
    "too many tools": ({"tools": [TOOL] * 129}, "tools", "128"),
    "tools of another kind": ({"tools": {"a": 1}}, "tools", "array"),
    "a deferred tool": ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading", "not supported"),
    "a format of its own": ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "grammar"),
    "a format without a schema": (
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        "text.format.schema",
        "missing",
    ),
    "a schema of a format": (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "http://x"}}}},
        "text.format.schema.$ref",
        "inside the schema",
    ),
    "verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
    "no limit of tokens": ({"max_output_tokens": 0}, "max_output_tokens", "integer"),
    "truncation": ({"truncation": "auto"}, "truncation", "disabled"),
    "an include of its own": ({"include": ["everything"]}, "include", "everything"),
    "includes of another kind": ({"include": 5}, "include", "array"),
    "an include that is no text": ({"include": [{}]}, "include", "object"),
    "metadata": ({"metadata": {"a": 5}}, "metadata.a", "string"),
    "too much metadata": ({"metadata": {str(number): "x" for number in range(17)}}, "metadata", "16"),
    "a long name of metadata": ({"metadata": {"x" * 65: "x"}}, "metadata", "65"),
    "stream options without a stream": ({"stream_options": {}}, "stream_options", "only if stream is true"),
    "a chat's stream options": (
        {"stream": True, "stream_options": {"include_usage": True}},
        "stream_options.include_usage",
        "not supported",
    ),
    "a chat's field": ({"messages": []}, "messages", "not supported"),
    "several answers": ({"n": 2}, "n", "not supported"),
}


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named_as_the_client_names_it(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedField)) as refused:
        responses_request({"input": "hi", **fields}, LIMITS)
    assert refused.value.param == param
    assert words in refused.value.message
    assert "response_format" not in refused.value.message
    assert ".function." not in refused.value.message


def test_an_answer_repeats_the_request() -> None:
    shown = translated(instructions="Be brief.", metadata={"a": "b"}, tools=[TOOL], temperature=0.0, user="u").shown
    assert shown["store"] is False
    assert shown["instructions"] == "Be brief."
    assert shown["metadata"] == {"a": "b"}
    assert shown["tools"] == [TOOL]
    assert (shown["temperature"], shown["tool_choice"], shown["parallel_tool_calls"]) == (0.0, "auto", True)
    assert shown["text"] == {"format": {"type": "text"}}
    json.dumps(shown, allow_nan=False)
