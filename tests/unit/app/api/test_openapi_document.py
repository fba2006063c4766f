"""Properties of the OpenAPI document that hold across many routes."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.services.bodies.field_table import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    LORAX,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
)
from tests.support.site import Site

INFERENCE = {
    *("/", "/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize", "/v1/detokenize"),
}
ENVELOPES = dict.fromkeys(("/", "/generate", "/generate_stream"), "LoraxErrorResponse") | dict.fromkeys(
    ("/v1/messages", "/v1/messages/count_tokens"), "AnthropicErrorResponse"
)

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def document(site: Site) -> dict[str, Any]:
    with site.client(None) as client:
        client.get("/openapi.json")
        # Fetch the document twice: what the first call adds must not be added again.
        return client.get("/openapi.json").json()


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_all_but_the_probes_ask_for_a_key(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert (schemes["header"]["in"], schemes["header"]["name"]) == ("header", "x-api-key")
    for path, method, operation in operations(document):
        keys = operation.get("security", [])
        assert keys == ([] if path.startswith("/health") else [{"bearer": []}, {"header": []}]), (path, method)
        assert ("401" in operation["responses"]) == bool(keys), (path, method)


def test_what_takes_a_body_has_a_cap(document: dict[str, Any]) -> None:
    capped = [operation for *_, operation in operations(document) if "413" in operation["responses"]]
    assert capped == [operation for *_, operation in operations(document) if "requestBody" in operation]
    assert len(capped) > 30


def test_posts_that_change_something_take_an_idempotency_key(document: dict[str, Any]) -> None:
    found = 0
    for path, method, operation in operations(document):
        named = [one["name"] for one in operation.get("parameters", []) if one["name"] == "Idempotency-Key"]
        inference = path in INFERENCE
        assert named == (["Idempotency-Key"] if method == "post" and not inference else []), (path, method)
        assert not named or {"400", "409"} <= operation["responses"].keys(), (path, method)
        found += len(named)
    assert found > 10


@pytest.mark.parametrize(
    ("path", "names", "required"),
    [
        ("/v1/completions", COMPLETIONS.names, ["prompt"]),
        ("/v1/chat/completions", CHAT.names, ["messages"]),
        ("/v1/responses", RESPONSES.names, ["input"]),
        ("/v1/messages", MESSAGES.names, ["messages", "max_tokens"]),
        ("/v1/messages/count_tokens", COUNT_TOKENS.names, ["messages"]),
        ("/v1/tokenize", TOKENIZE.names, []),
        ("/v1/detokenize", DETOKENIZE.names, ["tokens"]),
        ("/generate", {"inputs", "parameters", "stream"}, ["inputs"]),
        ("/generate_stream", {"inputs", "parameters", "stream"}, ["inputs"]),
        ("/", {"inputs", "parameters", "stream"}, ["inputs"]),
    ],
)
def test_bodies_of_inference_have_the_fields_of_the_allow_lists(
    document: dict[str, Any], path: str, names: set[str], required: list[str]
) -> None:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"].keys() == names
    assert (body["required"], body["additionalProperties"]) == (required, False)
    if "parameters" in names:
        assert body["properties"]["parameters"]["properties"].keys() == LORAX.names


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("/v1/completions", {"application/json", "text/event-stream"}),
        ("/v1/responses", {"application/json", "text/event-stream"}),
        ("/v1/messages", {"application/json", "text/event-stream"}),
        ("/v1/tokenize", {"application/json"}),
        ("/generate", {"application/json"}),
        ("/generate_stream", {"text/event-stream"}),
        ("/", {"application/json", "text/event-stream"}),
        ("/v1/events", {"text/event-stream"}),
        ("/metrics", {"text/plain"}),
        ("/v1/adapters/{adapter}/versions/{number}/files/{name}", {"application/octet-stream", "application/json"}),
    ],
)
def test_answers_have_the_kinds_that_are_sent(document: dict[str, Any], path: str, kinds: set[str]) -> None:
    (operation,) = document["paths"][path].values()
    assert operation["responses"]["200"]["content"].keys() == kinds


def test_errors_have_the_envelope_of_their_api(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        envelope = ENVELOPES.get(path, "ErrorResponse")
        for status, answer in operation["responses"].items():
            if status >= "400" and path != "/health/ready":
                schema = answer["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith(f"/{envelope}"), (path, method, status)
