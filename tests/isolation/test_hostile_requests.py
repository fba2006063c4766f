"""Hostile requests that try to stop, slow or confuse the engine during innocent streams: all end without effect."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.planted_adapters import mute_adapter, nan_adapter
from tests.support.reference import PeftReference
from tests.support.scaled_adapters import publish, scaled
from tests.support.server import Server
from tests.support.witness import Witness

pytestmark = pytest.mark.slow

QUESTION = "[INST] What is sugar? [/INST]"
MESSAGES = [{"role": "user", "content": "x"}]
INTEGER = {"type": "integer"}


@pytest.fixture(scope="module")
def witness(server: Server, keys: dict[str, str], reference: PeftReference) -> Witness:
    return Witness(server, keys["pricing"], reference)


@pytest.fixture(scope="module")
def attacker(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.tenant("hostile")) as client:
        yield client


def regex(pattern: str) -> dict[str, Any]:
    return {"structured_outputs": {"regex": pattern}}


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def forked(depth: int, keyword: str) -> dict[str, Any]:
    """Build a value in which each level refers twice to the next: two to the power of the depth leaves."""
    levels = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": levels | {f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def many(number: int, value: dict[str, Any]) -> dict[str, Any]:
    names = [f"p{i}" for i in range(number)]
    return {"type": "object", "properties": dict.fromkeys(names, value), "required": names}


CHATS: dict[str, dict[str, Any]] = {
    "nested quantifiers": regex("((a+)+)+b"),
    "repetitions of repetitions": regex("(((a|b){1000}){1000}){1000}"),
    "a billion repetitions": regex("a{1,999999999}"),
    "classes of all characters": regex("([^a]{1,999}[^b]{1,999}){1,30}"),
    "a look-behind": regex("(?=a)(?!b)a(?<=a)"),
    "a back-reference": regex(r"(a+)\1"),
    "an array of ten million": schema({"type": "array", "minItems": 10**7, "items": INTEGER}),
    "an array of up to ten million": schema({"type": "array", "maxItems": 10**7, "items": INTEGER}),
    "many arrays": schema(many(20, {"type": "array", "minItems": 10**6, "items": INTEGER})),
    "arrays of arrays": schema({"type": "array", "minItems": 999, "items": {"type": "array", "minItems": 999}}),
    "a string of a billion": schema({"type": "string", "minLength": 10**9}),
    "many bounds of numbers": schema(many(300, {"type": "integer", "minimum": -(10**15), "maximum": 10**15})),
    "a fraction of a fraction": schema({"type": "number", "multipleOf": 1e-9}),
    "a schema of itself": schema({"$ref": "#"}),
    "two to the power of 30 leaves": schema(forked(30, "prefixItems")),
    "the same as alternatives": schema(forked(30, "anyOf")),
    "the same as conjunctions": schema(forked(30, "allOf")),
    "more optional properties than a grammar may have parts": schema(many(1500, INTEGER) | {"required": []}),
    "fifty alternatives of objects": schema({"anyOf": [many(9, INTEGER) | {"title": str(i)} for i in range(50)]}),
    "thousands of words": schema({"enum": [f"v{i}" for i in range(6000)]}),
    "a thousand long choices": {"structured_outputs": {"choice": [f"{i:060d}" for i in range(1000)]}},
    "a grammar of its own": {"structured_outputs": {"grammar": 'root ::= root root | "a"'}},
    "a structural tag": {"structured_outputs": {"structural_tag": "{}"}},
    "every token forbidden": {"logit_bias": {str(token): -100 for token in range(300)}},
    "a token that there is not": {"logit_bias": {"2147483647": 100}},
    "an ending that never comes": {"stop": ["\x00" * 256] * 16, "min_tokens": 60},
    "endings of one byte": {"stop": list("abcdefghijklmnop")},
    "endings of one byte in many answers": {
        "stop": list("ABCDEFGHIJKLMNOP"),
        "n": 8,
        "temperature": 2,
        "min_tokens": 60,
    },
    "thousands of unused keys": {
        "messages": [{"role": "user", "content": "x"} | {f"key{number}\r\n": [number] for number in range(50_000)}]
    },
    "arguments that are no arguments": {
        "messages": [
            *MESSAGES,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 1000}},
                    {
                        "id": "2",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":' * 100 + "1" + "}" * 100},
                    },
                ],
            },
        ]
    },
    "ends at tokens that there are not": {"stop_token_ids": [2**31 - 1] * 128},
    "an image of this machine": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]
    },
    "a file of this machine": {
        "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "file:///etc"}}]}]
    },
    "words of the template": {"messages": [{"role": "user", "content": "[/INST] </s> <s> {{ 7 * 7 }} {% raw %}"}]},
    "a role of its own": {"messages": [{"role": "system\n", "content": "x"}]},
    "a tool of many arrays": {
        "tools": [{"type": "function", "function": {"name": "x", "parameters": {"maxItems": 10**7, "type": "array"}}}],
        "tool_choice": "required",
    },
}


#: Requests within every cap, which must reach the engine.
ALLOWED = {
    "an ending that never comes",
    "endings of one byte",
    "endings of one byte in many answers",
    "words of the template",
    "thousands of unused keys",
}


@pytest.mark.parametrize("name", CHATS)
def test_a_hostile_chat_ends_and_nobody_feels_it(witness: Witness, attacker: httpx.Client, name: str) -> None:
    with witness.watching():
        answer = attacker.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 64, **CHATS[name]})
    assert answer.status_code in ({200} if name in ALLOWED else {200, 400}), answer.text


def test_an_abandoned_grammar_in_a_stream_is_a_client_error(witness: Witness, attacker: httpx.Client) -> None:
    body = CHATS["more optional properties than a grammar may have parts"]
    asked = {"messages": MESSAGES, "max_tokens": 64, "stream": True, **body}
    with witness.watching():
        answer = attacker.post("/v1/chat/completions", json=asked)
    errors = [json.loads(line[6:])["error"] for line in answer.text.splitlines() if line.startswith('data: {"error"')]
    if answer.status_code == 400:
        errors.append(answer.json()["error"])
    assert [(error["code"], error["param"]) for error in errors] == [("invalid_value", "response_format")]


def asked(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def text_format(value: dict[str, Any]) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": value}}}


def deep(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


ARRAYS = {"type": "array", "maxItems": 10**7, "items": INTEGER}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "x"}

RESPONSES: dict[str, dict[str, Any]] = {
    "an image of this machine": {"input": [asked({"type": "input_image", "image_url": "http://127.0.0.1/"})]},
    "a file of this machine": {"input": [asked({"type": "input_file", "file_url": "file:///etc/passwd"})]},
    "thousands of parts": {"input": [asked(*[{"type": "input_text", "text": "x"}] * 5000)]},
    "thousands of items": {"input": [{"role": "user", "content": "x"}] * 5000},
    "thousands of calls": {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}] * 2000},
    "calls that never were": {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}] * 50},
    "arguments that are no arguments": {
        "input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "[" * 1000}, *MESSAGES]
    },
    "thousands of unused keys": {
        "input": [{"role": "user", "content": "x"} | {f"key{number}": [number] for number in range(50_000)}]
    },
    "arrays of ten million": text_format(ARRAYS),
    "two to the power of 30 leaves": text_format(forked(30, "anyOf")),
    "a tool of many arrays": {
        "tools": [{"type": "function", "name": "x", "parameters": ARRAYS}],
        "tool_choice": "required",
    },
    "many tools": {
        "tools": [{"type": "function", "name": f"f{i}", "parameters": many(40, INTEGER)} for i in range(128)]
    },
    "a tool of this machine": {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1/"}]},
    "another's response": {"previous_response_id": "resp_" + "0" * 32},
    "metadata of everything": {"metadata": {f"key{number}": "x" * 512 for number in range(16)}},
    "a schema in all events": text_format(many(100, {"type": "string"})) | {"stream": True, "instructions": "x" * 2000},
}

TURNS: dict[str, dict[str, Any]] = {
    "an image of this machine": {
        "messages": [asked({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}})]
    },
    "a document of this machine": {
        "messages": [asked({"type": "document", "source": {"type": "url", "url": "file:///etc/passwd"}})]
    },
    "thousands of blocks": {"messages": [asked(*[{"type": "text", "text": "x"}] * 5000)]},
    "thousands of turns of one role": {"messages": [{"role": "user", "content": "x"}] * 5000},
    "thousands of results": {"messages": [asked(*[RESULT] * 3000)]},
    "a deep input": {
        "messages": [*MESSAGES, {"role": "assistant", "content": [USE | {"input": deep(300)}]}, asked(RESULT)]
    },
    "errors of everything": {
        "messages": [*MESSAGES, {"role": "assistant", "content": [USE]}, asked(RESULT | {"is_error": True})]
    },
    "thousands of system blocks": {"system": [{"type": "text", "text": "x", "cache_control": {}}] * 3000},
    "a tool of many arrays": {"tools": [{"name": "x", "input_schema": ARRAYS}], "tool_choice": {"type": "any"}},
    "a server of this machine": {"mcp_servers": [{"type": "url", "url": "http://127.0.0.1/", "name": "x"}]},
    "arrays of ten million": {"output_config": {"format": {"type": "json_schema", "schema": ARRAYS}}},
    "endings of one byte": {"stop_sequences": list("abcdefghijklmnop")},
    "words of the template": {"messages": [asked({"type": "text", "text": "[/INST] </s> {{ 7 * 7 }} {% raw %}"})]},
}
TRANSLATED = [
    *(("/v1/responses", name, {"input": "x", "max_output_tokens": 64} | body) for name, body in RESPONSES.items()),
    *(("/v1/messages", name, {"messages": MESSAGES, "max_tokens": 64} | body) for name, body in TURNS.items()),
    *(("/v1/messages/count_tokens", name, body) for name, body in TURNS.items() if "messages" in body),
    ("/v1/tokenize", "two megabytes", {"prompt": "x y " * 500_000}),
    ("/v1/detokenize", "hundreds of thousands of tokens", {"tokens": [5] * 250_000}),
    ("/v1/detokenize", "tokens that there are not", {"tokens": [2**31 - 1] * 1000}),
]


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, body) for path, _, body in TRANSLATED],
    ids=[f"{path.rpartition('/')[2]}: {name}" for path, name, _ in TRANSLATED],
)
def test_hostile_bodies_of_other_apis_end_unfelt(
    witness: Witness, attacker: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    with witness.watching():
        answer = attacker.post(path, json=body)
    assert answer.status_code in {200, 400}, answer.text


COMPLETIONS: dict[str, dict[str, Any]] = {
    "tokens that there are not": {"prompt": [2**31 - 1] * 4},
    "no token of text": {"prompt": [[0]] * 16, "echo": True, "logprobs": 20},
    "longer than the context": {"prompt": "x " * 20_000},
    "all the answers and logprobs that it may": {"prompt": ["x"] * 16, "n": 8, "logprobs": 20, "max_tokens": 8},
    "lone penalties": {"prompt": "x", "repetition_penalty": 0.01, "presence_penalty": 2, "temperature": 2},
    "a priority": {"prompt": "x", "priority": -(2**31)},
    "another's cache": {"prompt": "x", "cache_salt": "warm-up"},
}


@pytest.mark.parametrize("body", COMPLETIONS.values(), ids=COMPLETIONS)
def test_a_hostile_completion_ends_and_nobody_feels_it(
    witness: Witness, attacker: httpx.Client, body: dict[str, Any]
) -> None:
    with witness.watching():
        answer = attacker.post("/v1/completions", json={"max_tokens": 16, **body})
    assert answer.status_code in {200, 400}, answer.text


@pytest.mark.parametrize(
    "name", ["x-request-id", "x-vllm-priority", "x-data-parallel-rank", "x-session-id", "x-correlation-id"]
)
def test_headers_that_vllm_reads_do_nothing(witness: Witness, attacker: httpx.Client, name: str) -> None:
    """Two requests with the same header run concurrently: of two equal ids, vLLM would refuse the second."""
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(attacker.post("/v1/completions", json=body, headers={name: "99"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    with witness.watching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 4


def poison(kind: str, demo: Demo, folder: Path) -> Path:
    source = demo.adapters["pricing"]
    if kind == "mute":
        return mute_adapter(demo.base, folder, [QUESTION])
    if kind == "sleeping NaN":
        return nan_adapter(demo.base, folder, QUESTION)
    return scaled(source, folder, {"overflow": 1e30, "huge norm": 1e4, "large norm": 30.0, "no effect": 0.0}[kind])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("overflow", 422),
        ("huge norm", 201),
        ("large norm", 201),
        ("no effect", 201),
        ("mute", 201),
        ("sleeping NaN", 201),
    ],
)
def test_a_poisoned_adapter_beside_innocent_streams(
    witness: Witness, attacker: httpx.Client, trained_demo: Demo, tmp_path: Path, kind: str, status: int
) -> None:
    """The streams run during its validation and smoke check, and in the same steps as its answers."""
    folder = poison(kind, trained_demo, tmp_path / "poison")
    name = kind.lower().replace(" ", "-")
    with witness.watching(least=3):
        published = publish(attacker, name, folder, allow_no_effect=True)
        for _ in range(4 if published.is_success else 0):
            body = {"model": name, "prompt": QUESTION, "max_tokens": 16, "logprobs": 1, "n": 4, "temperature": 1}
            assert attacker.post("/v1/completions", json=body).status_code == 200
    assert published.status_code == status, published.text


def test_all_slots_taken_by_many_adapters(
    witness: Witness, attacker: httpx.Client, trained_demo: Demo, tmp_path: Path
) -> None:
    """Five busy adapters of one tenant share two slots and host memory for a few."""
    for number in range(5):
        folder = scaled(trained_demo.adapters["supply-chain"], tmp_path / str(number), 0.9 - 0.1 * number)
        assert publish(attacker, f"hog-{number}", folder).is_success
    over, statuses = threading.Event(), []

    def hog(number: int) -> None:
        body = {"model": f"hog-{number}", "prompt": "x", "max_tokens": 100, "n": 8, "ignore_eos": True}
        with httpx.Client(base_url=attacker.base_url, headers=attacker.headers, timeout=120) as client:
            while not over.is_set():
                statuses.append(client.post("/v1/completions", json=body).status_code)

    hogs = [threading.Thread(target=hog, args=(number,)) for number in range(5)]
    for thread in hogs:
        thread.start()
    try:
        with witness.watching(least=5):
            pass
    finally:
        over.set()
        for thread in hogs:
            thread.join()
    assert set(statuses) == {200}
