"""Answers of the real engine, whole and streamed, match the OpenAPI description."""

from typing import Any

import httpx
import pytest
import requests
import schemathesis
from schemathesis import BaseSchema

from tests.fuzz.api.judge import Call, complaints
from tests.support.server import Server

LORAX = {"inputs": "[INST] Hello [/INST]"}
PARAMETERS = {"adapter_id": "pricing", "max_new_tokens": 4, "details": True, "return_k_alternatives": 2}
OPENAI = {"model": "pricing", "max_tokens": 4}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**OPENAI, "prompt": "Hello", "logprobs": 1}),
    ("/v1/chat/completions", {**OPENAI, "messages": [{"role": "user", "content": "Hello"}]}),
    ("/v1/responses", {"model": "pricing", "input": "Hello", "max_output_tokens": 4}),
    ("/v1/messages", {**OPENAI, "messages": [{"role": "user", "content": "Hello"}]}),
    ("/generate", {**LORAX, "parameters": PARAMETERS}),
    ("/", {**LORAX, "parameters": PARAMETERS}),
]


@pytest.fixture(scope="module")
def schema(server: Server) -> BaseSchema:
    return schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())


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
    server: Server, keys: dict[str, str], schema: BaseSchema, path: str, body: dict[str, Any]
) -> None:
    headers = {"Authorization": f"Bearer {keys['pricing']}"}
    request = requests.Request("POST", f"{server.url}{path}", headers=headers, json=body).prepare()
    with requests.Session() as session:
        session.trust_env = False
        answer = session.send(request)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream") == (body.get("stream") or "stream" in path)
    case = schema[path]["POST"].Case(body=body, media_type="application/json")
    assert list(complaints(Call(case, "tenant", request, answer, as_described=True, secret=str(server.home)))) == []
