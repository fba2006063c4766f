"""Requests of Anthropic's Messages become chats, or are refused by the client's names."""

import json
from typing import Any

import pytest

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.anthropic import MessagesRequest, count_request, messages_request
from app.settings import LimitSettings

LIMITS = LimitSettings()
SCHEMA = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOL = {"name": "price_of", "description": "A price.", "input_schema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {"name": "price_of", "description": "A price.", "parameters": SCHEMA}}
ASKED = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "t1", "name": "price_of", "input": {"item": "salt"}}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "price_of", "arguments": '{"item": "salt"}'}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "two euros"}
CHAT_RESULT = {"role": "tool", "tool_call_id": "t1", "content": "two euros"}


def translated(*turns: dict[str, Any], **fields: Any) -> MessagesRequest:
    body = {"model": "pricing", "max_tokens": 9, "messages": [*turns] or [ASKED], **fields}
    return messages_request(body, LIMITS)


def turns(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = translated(*messages, **fields).chat["messages"]
    return found


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def asked(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def test_texts_and_blocks_are_the_same() -> None:
    assert turns(ASKED) == turns(asked(part("hi"))) == [asked(part("hi"))]


@pytest.mark.parametrize("system", ["Be brief.", [part("Be brief.")]])
def test_the_system_prompt_is_a_system_message(system: Any) -> None:
    assert turns(system=system)[0] == {"role": "system", "content": system}


@pytest.mark.parametrize("system", ["", []])
def test_an_empty_system_prompt_counts_as_not_sent(system: Any) -> None:
    assert [turn["role"] for turn in turns(system=system)] == ["user"]


def test_a_report_of_a_coding_agent_is_no_system_prompt() -> None:
    """It changes with each request, so no prompt would share a prefix with the one before."""
    report = part("x-anthropic-billing-header: cc_version=2.1; cch=0f3a;")
    request = translated(system=[report, part("Be brief.")])
    assert request.chat["messages"][0] == {"role": "system", "content": [part("Be brief.")]}
    assert request.ignored == ("system[].x-anthropic-billing-header",)


def test_consecutive_turns_of_a_role_are_one() -> None:
    first, second = asked(part("a")), asked(part("b"), part("c"))
    assert turns(first, second) == [asked(part("a"), part("b"), part("c"))]
    found = turns(first, said(part("x")), said(USE), asked(RESULT), second)
    assert found == [
        first,
        said(part("x")) | {"tool_calls": [CHAT_CALL]},
        CHAT_RESULT,
        asked(part("b"), part("c")),
    ]


def test_a_system_turn_stays_at_its_place() -> None:
    told = {"role": "system", "content": "Now in French."}
    found = turns(told, ASKED, said(part("x")), told, ASKED, system="Be brief.")
    assert [turn["role"] for turn in found] == ["system", "system", "user", "assistant", "system", "user"]
    assert found[1] == {"role": "system", "content": [part("Now in French.")]}


def test_results_come_before_the_text_of_their_turn() -> None:
    second = RESULT | {"tool_use_id": "t2"}
    found = turns(ASKED, said(USE, USE | {"id": "t2"}), asked(RESULT, second, part("So?")))
    assert found[1:] == [
        {"role": "assistant", "tool_calls": [CHAT_CALL, CHAT_CALL | {"id": "t2"}]},
        CHAT_RESULT,
        CHAT_RESULT | {"tool_call_id": "t2"},
        asked(part("So?")),
    ]


RESULTS: dict[str, tuple[dict[str, Any], Any]] = {
    "a text": ({"content": "two euros"}, "two euros"),
    "blocks": ({"content": [part("two"), part("euros")]}, [part("two"), part("euros")]),
    "nothing": ({"content": None}, ""),
    "no blocks": ({"content": []}, ""),
    "an error": ({"content": "no", "is_error": True}, "Error: no"),
    "an error of blocks": ({"content": [part("no"), part("way")], "is_error": True}, [part("Error: no"), part("way")]),
    "an error without words": ({"content": [], "is_error": True}, [part("Error: ")]),
    "no error": ({"content": "two euros", "is_error": False}, "two euros"),
}


@pytest.mark.parametrize(("fields", "content"), RESULTS.values(), ids=RESULTS)
def test_a_result_becomes_a_message_of_the_tool(fields: dict[str, Any], content: Any) -> None:
    assert turns(ASKED, said(USE), asked(RESULT | fields))[2] == CHAT_RESULT | {"content": content}


def test_arguments_keep_their_order_and_their_letters() -> None:
    found = turns(ASKED, said(USE | {"input": {"b": "é", "a": [1, {"c": None}]}}), asked(RESULT))
    assert found[1]["tool_calls"][0]["function"]["arguments"] == '{"b": "é", "a": [1, {"c": null}]}'


def test_thinking_is_ignored_and_named() -> None:
    thoughts = [{"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "redacted_thinking", "data": "z"}]
    request = translated(ASKED, said(*thoughts, part("Sweet.")), ASKED)
    assert request.chat["messages"][1] == said(part("Sweet."))
    assert request.ignored == ("messages[].content[].thinking", "messages[].content[].redacted_thinking")


def test_fields_become_those_of_a_chat() -> None:
    request = translated(
        temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["x"], stream=True, tools=[TOOL],
        tool_choice={"type": "tool", "name": "price_of", "disable_parallel_tool_use": True},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )  # fmt: skip
    assert request.chat == {
        "messages": [asked(part("hi"))], "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop": ["x"],
        "stream": True, "stream_options": {"include_usage": True}, "tools": [CHAT_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "price_of"}}, "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}},
    }  # fmt: skip
    assert request.stops == ("x",)


@pytest.mark.parametrize(("kind", "choice"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_a_tool_choice_by_word_has_a_chats_word(kind: str, choice: str) -> None:
    request = translated(tools=[TOOL | {"type": "custom"}], tool_choice={"type": kind})
    assert (request.chat["tool_choice"], request.chat["tools"]) == (choice, [CHAT_TOOL])


def test_fields_without_effect_are_named() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    request = translated(
        asked(part("hi") | cached), thinking={"type": "enabled", "budget_tokens": 5}, metadata={"user_id": "u"},
        service_tier="auto", system=[part("x") | cached], tools=[TOOL | cached], output_config={"effort": "low"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )  # fmt: skip
    assert set(request.ignored) == {
        "thinking", "metadata", "service_tier", "system[].cache_control", "messages[].content[].cache_control",
        "tools[].cache_control", "output_config.effort", "context_management",
    }  # fmt: skip


def test_a_count_needs_no_limit_of_tokens() -> None:
    body = {"model": "pricing", "messages": [ASKED], "system": "x", "tools": [TOOL]}
    chat = translated(system="x", tools=[TOOL]).chat
    assert count_request(body, LIMITS).chat | {"max_tokens": 9} == chat
    with pytest.raises(UnsupportedField, match="max_tokens"):
        count_request(body | {"max_tokens": 4}, LIMITS)


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an image": ({"messages": [asked(IMAGE)]}, "messages.0.content.0.type", "'image'"),
    "an image in a result": (
        {"messages": [ASKED, said(USE), asked(RESULT | {"content": [IMAGE]})]},
        "messages.2.content.0.content.0.type",
        "The base reads text only",
    ),
    "a document": ({"messages": [asked({"type": "document", "source": {}})]}, "messages.0.content.0.type", "document"),
    "a use by the user": ({"messages": [asked(USE)]}, "messages.0.content.0.type", "'tool_use'"),
    "a result by the assistant": (
        {"messages": [ASKED, said(RESULT), ASKED]},
        "messages.1.content.0.type",
        "'tool_result'",
    ),
    "a search by the server": (
        {"messages": [ASKED, said({"type": "server_tool_use", "id": "x"}), ASKED]},
        "messages.1.content.0.type",
        "server_tool_use",
    ),
    "a beginning of the answer": ({"messages": [ASKED, said(part("Once"))]}, "messages", "cannot be prefilled"),
    "a role of its own": ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'tool'"),
    "no role": ({"messages": [{"content": "x"}]}, "messages.0.role", "missing"),
    "no content": ({"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
    "content of another kind": ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "5"),
    "a block of another kind": ({"messages": [asked("x")]}, "messages.0.content.0.type", "null"),  # type: ignore[arg-type]
    "a type that is no text": ({"messages": [asked({"type": {}})]}, "messages.0.content.0.type", "object"),
    "no turns": ({"messages": []}, "messages", "at least one turn"),
    "turns of another kind": ({"messages": "hi"}, "messages", "'hi'"),
    "a turn that is a text": ({"messages": ["hi"]}, "messages.0", "object"),
    "too many turns": ({"messages": [ASKED, said(part("x"))] * 1025 + [ASKED]}, "messages", "2048"),
    "too many blocks": ({"messages": [asked(*[part("x")] * 257)]}, "messages", "256"),
    "an input that is no object": (
        {"messages": [ASKED, said(USE | {"input": "{}"}), asked(RESULT)]},
        "messages.1.content.0.input",
        "an object",
    ),
    "a deep input": (
        {"messages": [ASKED, said(USE | {"input": json.loads('{"a":' * 200 + "1" + "}" * 200)}), asked(RESULT)]},
        "messages.1.content.0.input",
        "too deeply",
    ),
    "a result of nothing": (
        {"messages": [asked({"type": "tool_result", "content": "x"})]},
        "messages.0.content.0.tool_use_id",
        "missing",
    ),
    "an error that is no boolean": (
        {"messages": [ASKED, said(USE), asked(RESULT | {"is_error": "yes"})]},
        "messages.2.content.0.is_error",
        "true or false",
    ),
    "a system of another kind": ({"system": 5}, "system", "5"),
    "an image in the system": ({"system": [IMAGE]}, "system.0.type", "'image'"),
    "a tool of the server": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools.0.type",
        "This server runs no tools",
    ),
    "a tool without a schema": ({"tools": [{"name": "x"}]}, "tools.0.input_schema", "missing"),
    "a schema of a tool": ({"tools": [TOOL | {"input_schema": 5}]}, "tools.0.input_schema", "JSON schema"),
    "a name of a tool": ({"tools": [TOOL | {"name": "a b"}]}, "tools.0.name", "a b"),
    "tools of another kind": ({"tools": 5}, "tools", "array"),
    "a deferred tool": ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading", "not supported"),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "tool_choice", "together with tools"),
    "a choice of an absent tool": (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}},
        "tool_choice",
        "not in tools",
    ),
    "a choice without a name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
    "a choice of its own": ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type", "'all'"),
    "a choice by a text": ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice", "object"),
    "servers of MCP": ({"mcp_servers": [{"url": "http://127.0.0.1/"}]}, "mcp_servers", "runs no code and no tools"),
    "a container": ({"container": "x"}, "container", "runs no code and no tools"),
    "an edit of the context": (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits.0.type",
        "Shorten the conversation",
    ),
    "a format of its own": (
        {"output_config": {"format": {"type": "xml", "schema": {}}}},
        "output_config.format.type",
        "json_schema",
    ),
    "a schema of a format": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "http://x"}}}},
        "output_config.format.schema.$ref",
        "inside the schema",
    ),
    "no limit of tokens": ({"max_tokens": None}, "max_tokens", "missing"),
    "a limit of zero": ({"max_tokens": 0}, "max_tokens", "integer"),
    "a long stop sequence": ({"stop_sequences": ["x" * 300]}, "stop_sequences", "256"),
    "a priority": ({"priority": 1}, "priority", "not supported"),
}


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_named_as_the_client_names_it(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedField)) as refused:
        messages_request({"messages": [ASKED], "max_tokens": 9, **fields}, LIMITS)
    assert refused.value.param == param
    # Anthropic's envelope has no field for it.
    assert param.split(".")[0] in refused.value.message
    assert words in refused.value.message
    assert ".function." not in refused.value.message
