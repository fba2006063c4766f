"""Responses and Messages on the real engine: prompts, greedy texts, usage and limits are those of the same chat."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.chat_answers import parsed
from tests.support.server import Server

QUESTION = "Can you explain sugar?"
SCHEMA = {"type": "object", "properties": {"sku": {"enum": ["sugar", "salt"]}}, "required": ["sku"]}
TEMPLATE = """{{ bos_token }}{% for m in messages %}
{% if m.role == 'system' %}
Note: {{ m.content|trim }}
{% elif m.role == 'user' %}
[INST] {{ m.content }} [/INST]
{%- else %}
 {{ m.content }}{{ eos_token }}
{% endif %}
{% endfor %}"""
DEFAULTS: dict[str, dict[str, Any]] = {
    "no defaults": {},
    "a system prompt": {"system_prompt": "Answer in one sentence.", "stop": ["zz"]},
    "its own template": {"chat_template": TEMPLATE, "system_prompt": "Answer in one sentence."},
    "a prompt format": {"prompt_format": "llama-2"},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "price_of", "arguments": '{"sku": "salt"}'}}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TURNS = [turn("user", QUESTION), turn("assistant", "Sweet."), turn("user", "And salt?")]
#: The same conversation as the body of a response, a message and a chat.
PLAIN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a question": ({"input": QUESTION}, {"messages": TURNS[:1]}, {"messages": TURNS[:1]}),
    "turns": ({"input": TURNS}, {"messages": TURNS}, {"messages": TURNS}),
    "a system prompt": (
        {"instructions": "Be a pirate.", "input": TURNS},
        {"system": "Be a pirate.", "messages": TURNS},
        {"messages": [turn("system", "Be a pirate."), *TURNS]},
    ),
}
LOOP = (
    {
        "input": [
            turn("user", QUESTION),
            {"type": "function_call", "call_id": "c1", "name": "price_of", "arguments": '{"sku": "salt"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "two euros"},
        ],
        "tools": [{"type": "function", "name": "price_of", "parameters": SCHEMA}],
    },
    {
        "messages": [
            turn("user", QUESTION),
            turn("assistant", [{"type": "tool_use", "id": "c1", "name": "price_of", "input": {"sku": "salt"}}]),
            turn("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "two euros"}]),
        ],
        "tools": [{"name": "price_of", "input_schema": SCHEMA}],
    },
    {
        "messages": [
            turn("user", QUESTION),
            turn("assistant", None, tool_calls=[CALL]),
            turn("tool", "two euros", tool_call_id="c1"),
        ],
        "tools": [{"type": "function", "function": {"name": "price_of", "parameters": SCHEMA}}],
    },
)


@pytest.fixture(scope="module")
def client(server: Server, trained_demo: Demo) -> Iterator[httpx.Client]:
    key = server.tenant("translated", scopes=("inference", "adapters:read", "usage:read"))
    assert server.publish("translated", "prices", trained_demo.adapters["pricing"]).status_code == 201
    with server.client(key) as client:
        yield client


def describe(server: Server, defaults: dict[str, Any]) -> None:
    with server.client(server.admin_key) as admin:
        path = "/admin/tenants/translated/adapters/prices/versions/1"
        assert admin.patch(path, json={"defaults": defaults}).status_code == 200


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = client.post(path, json={"model": "prices", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return parsed([answer.text])


def text_of_response(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def input_tokens(usage: dict[str, Any]) -> int:
    """Return all tokens of a prompt; Anthropic counts those from the cache separately."""
    return int(usage["input_tokens"]) + int(usage.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize("defaults", DEFAULTS.values(), ids=DEFAULTS)
@pytest.mark.parametrize("bodies", PLAIN.values(), ids=PLAIN)
def test_texts_and_tokens_equal_the_chats(
    server: Server, client: httpx.Client, bodies: Any, defaults: dict[str, Any]
) -> None:
    describe(server, defaults)
    equal(client, bodies)


def test_a_loop_with_a_tool_equals_the_chats(server: Server, client: httpx.Client) -> None:
    describe(server, {})
    equal(client, LOOP)


def equal(client: httpx.Client, bodies: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    """Compare text, tokens of the prompt and of the answer, whole and streamed, with those of the chat."""
    responses, messages, chat = bodies
    said = post(client, "/v1/chat/completions", chat | {"max_tokens": 24, "return_token_ids": True}).json()
    tokens = post(client, "/v1/tokenize", {"temperature": None, **chat}).json()
    assert tokens["tokens"] == said["prompt_token_ids"]
    asked = {name: value for name, value in messages.items() if name != "max_tokens"} | {"temperature": None}
    counted = post(client, "/v1/messages/count_tokens", asked).json()
    text, usage = said["choices"][0]["message"]["content"], said["usage"]
    assert counted == {"input_tokens": usage["prompt_tokens"]}
    expected = (text, usage["prompt_tokens"], usage["completion_tokens"])

    body = responses | {"max_output_tokens": 24}
    response = post(client, "/v1/responses", body).json()
    last = events(post(client, "/v1/responses", body | {"stream": True}))[-1]["response"]
    for one in (response, last):
        found = one["usage"]
        assert (text_of_response(one), input_tokens(found), found["output_tokens"]) == expected

    body = messages | {"max_tokens": 24}
    message = post(client, "/v1/messages", body).json()
    found = message["usage"]
    assert (message["content"][0]["text"], input_tokens(found), found["output_tokens"]) == expected
    told = events(post(client, "/v1/messages", body | {"stream": True}))
    streamed = "".join(event["delta"]["text"] for event in told if event["type"] == "content_block_delta")
    found = told[-2]["usage"]
    assert (streamed, input_tokens(found), found["output_tokens"]) == expected
    assert told[0]["message"]["usage"]["input_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": 60}),
        ("/v1/messages", {"messages": TURNS[:1], "max_tokens": 60}),
    ],
)
def test_headers_are_those_of_a_chat(server: Server, client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    describe(server, {})
    for stream in (False, True):
        answer = post(client, path, fields | {"service_tier": "auto", "stream": stream})
        assert answer.headers["x-tenora-adapter"] == "prices@1"
        assert answer.headers["x-tenora-ignored"] == "service_tier"
        assert json.dumps(answer.headers["x-request-id"])


def test_what_is_refused_by_a_template_names_the_clients_field(server: Server, client: httpx.Client) -> None:
    describe(server, {"chat_template": TEMPLATE})
    tools = {"tools": LOOP[0]["tools"], "input": "x"}
    refused = client.post("/v1/responses", json={"model": "prices", **tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    describe(server, {"prompt_format": "llama-2"})
    items = {"instructions": "a", "input": [turn("developer", "b"), turn("user", "c")]}
    refused = client.post("/v1/responses", json={"model": "prices", **items})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("input")
    describe(server, {})
