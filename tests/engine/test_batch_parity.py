"""Answers of a batch over several adapters equal those of transformers + PEFT, token by token."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support import batch_client
from tests.support.batch_client import SCOPES, line
from tests.support.parity import QUESTIONS, prompt_of
from tests.support.reference import PeftReference
from tests.support.server import Server

TOKENS = 40


def test_each_line_is_answered_by_its_own_adapter(
    server: Server, keys: dict[str, str], reference: PeftReference
) -> None:
    """One tenant's batch names its own adapter, one that is shared with it, and the base."""
    owner, unit = list(keys)[:2]
    models = {unit: unit, f"{owner}/{owner}": owner, "demo": None}
    cases = [(model, question) for model in models for question in QUESTIONS for _ in range(3)]
    random.Random(0).shuffle(cases)
    lines = [
        line(
            f"{number}",
            {
                "model": model,
                "prompt": prompt_of(question),
                "max_tokens": TOKENS,
                "temperature": 0,
                "return_token_ids": True,
            },
        )
        for number, (model, question) in enumerate(cases)
    ]
    with sharing(server, owner, unit), server.client(server.tenant(unit, scopes=SCOPES)) as client:
        answers = batch_client.output(client, lines)
    assert [entry["custom_id"] for entry in answers] == [f"{number}" for number in range(len(cases))]
    for (model, question), entry in zip(cases, answers, strict=True):
        expected = reference.greedy(reference.encode(prompt_of(question)), models[model], TOKENS)
        assert entry["response"]["body"]["choices"][0]["token_ids"] == expected, (model, question)
        assert entry["tenora"]["version"] == (None if model == "demo" else f"{model}@1")


@contextmanager
def sharing(server: Server, owner: str, recipient: str) -> Iterator[None]:
    """Share the owner's adapter of the same name. Other tests of this server need it unshared."""
    path = f"/admin/tenants/{owner}/adapters/{owner}/shares/{recipient}"
    with server.client(server.admin_key) as admin:
        assert admin.put(path).status_code == 201
        yield
        assert admin.delete(path).status_code == 204


def test_all_endpoints_answer_as_their_routes_do(server: Server, keys: dict[str, str]) -> None:
    unit = next(iter(keys))
    chat = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 8, "temperature": 0}
    bodies: Mapping[str, Mapping[str, Any]] = {
        "/v1/completions": {"model": unit, "prompt": prompt_of(QUESTIONS[0]), "max_tokens": 8, "temperature": 0},
        "/v1/chat/completions": {"model": unit, **chat},
        "/v1/responses": {"model": unit, "input": QUESTIONS[0], "max_output_tokens": 16, "temperature": 0},
        "/generate": {"inputs": prompt_of(QUESTIONS[0]), "parameters": {"adapter_id": unit, "max_new_tokens": 8}},
    }
    with server.client(server.tenant(unit, scopes=SCOPES)) as client:
        for endpoint, body in bodies.items():
            (entry,) = batch_client.output(client, [line("one", body, endpoint)])
            answered = client.post(endpoint, json=body)
            assert answered.status_code == 200, answered.text
            assert _text(entry["response"]["body"]) == _text(answered.json())
            assert entry["response"]["body"].keys() == answered.json().keys()


def _text(body: Mapping[str, Any]) -> object:
    """Return the text of an answer of any route."""
    match body:
        case {"generated_text": text} | {"choices": [{"text": text}]}:
            return text
        case {"choices": [{"message": {"content": text}}]}:
            return text
        case {"output": [{"content": [{"text": text}]}]}:
            return text
    raise AssertionError(body)
