"""Answers of the real engine, whole and streamed, match the OpenAPI description."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from jsonschema import Draft202012Validator

from app.api.openapi_components import event_data
from tests.fuzz.api.judge import Call, complaints
from tests.support.openapi import resolved, standalone, with_event_schemas
from tests.support.server import Server

LORAX = {"inputs": "[INST] Hello [/INST]"}
PARAMETERS = {"adapter_id": "pricing", "max_new_tokens": 4, "details": True, "return_k_alternatives": 2}
OPENAI = {"model": "pricing", "max_tokens": 4}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
CALL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": EMPTY}}],
    "tool_choice": "required",
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**OPENAI, "prompt": "Hello", "logprobs": 1}),
    ("/v1/chat/completions", {**OPENAI, "messages": [{"role": "user", "content": "Hello"}]}),
    (
        "/v1/chat/completions",
        {
            **OPENAI,
            "messages": [{"role": "user", "content": "Hello"}],
            "logprobs": True,
            "top_logprobs": 1,
            "n": 2,
            "return_token_ids": True,
            "stop": "e",
        },
    ),
    ("/v1/chat/completions", {**OPENAI, **CALL, "max_tokens": 40}),
    (
        "/v1/messages",
        {**OPENAI, "messages": CALL["messages"], "tools": [{"name": "f", "input_schema": EMPTY}]}
        | {"tool_choice": {"type": "any"}, "max_tokens": 40},
    ),
    (
        "/v1/responses",
        {
            "model": "pricing",
            "input": "Hello",
            "tools": [{"type": "function", "name": "f", "parameters": EMPTY}],
            "tool_choice": "required",
            "max_output_tokens": 40,
        },
    ),
    ("/v1/responses", {"model": "pricing", "input": "Hello", "max_output_tokens": 4}),
    ("/v1/messages", {**OPENAI, "messages": [{"role": "user", "content": "Hello"}]}),
    ("/generate", {**LORAX, "parameters": PARAMETERS}),
    ("/", {**LORAX, "parameters": PARAMETERS}),
]


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    return dict(httpx.get(f"{server.url}/openapi.json").json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *CALLS,
        *((path, body | {"stream": True}) for path, body in CALLS if path != "/generate"),
        ("/generate_stream", {**LORAX, "parameters": PARAMETERS}),
        ("/v1/messages/count_tokens", {"model": "pricing", "messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/tokenize", {"model": "pricing", "prompt": "Hello", "return_token_strs": True}),
        ("/v1/detokenize", {"model": "pricing", "tokens": [1, 2, 3]}),
    ],
)
def test_an_answer_is_as_described(
    server: Server, keys: dict[str, str], document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    headers = {"Authorization": f"Bearer {keys['pricing']}"}
    request = requests.Request("POST", f"{server.url}{path}", headers=headers, json=body).prepare()
    with requests.Session() as session:
        session.trust_env = False
        answer = session.send(request)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream") == (body.get("stream") or "stream" in path)
    schema = schemathesis.openapi.from_dict(with_event_schemas(document))
    case = schema[path]["POST"].Case(body=body, media_type="application/json")
    assert list(complaints(Call(case, "tenant", request, answer, as_described=True, secret=str(server.home)))) == []
    described = document["paths"][path]["post"]["responses"]["200"]["content"]
    for described_value, value in values(described, answer):
        validator = Draft202012Validator(standalone(document, described_value))
        assert [error.message for error in validator.iter_errors(value)] == []
        assert list(undescribed(document, described_value, value)) == []


def values(described: dict[str, Any], answer: requests.Response) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each JSON value of an answer with its schema: the answer itself, or the data of each event."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        yield described["application/json"]["schema"], answer.json()
        return
    data_schema = event_data(described["text/event-stream"]["schema"])
    for line in answer.text.splitlines():
        name, _, data = line.partition(":")
        if name == "data" and data.strip() != "[DONE]":
            yield data_schema, json.loads(data)


def undescribed(document: dict[str, Any], schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values in an answer that its schema does not describe."""
    schema = resolved(document, schema)
    if not schema.keys() - {"description"}:
        return
    variants = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if variants:
        fitting = [one for one in variants if Draft202012Validator(standalone(document, one)).is_valid(value)]
        found = [list(undescribed(document, one, value, path)) for one in fitting]
        yield from min(found, key=len, default=[path])
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in known:
                yield from undescribed(document, known[name], item, f"{path}.{name}")
            elif others is None:
                yield f"{path}.{name}"
    elif isinstance(value, list):
        for item in value:
            yield from undescribed(document, schema["items"], item, f"{path}[]")
