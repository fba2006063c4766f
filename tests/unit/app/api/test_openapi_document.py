"""Properties of the OpenAPI document that hold across many routes."""

import re
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.domain.access import Scope
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
from tests.support.openapi import (
    Operation,
    operations,
    resolved,
    schemas_in,
    standalone,
    successes,
)
from tests.support.site import Site

INFERENCE = {
    *("/", "/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize", "/v1/detokenize"),
}
ENVELOPES = dict.fromkeys(("/", "/generate", "/generate_stream"), "LoraxErrorResponse") | dict.fromkeys(
    ("/v1/messages", "/v1/messages/count_tokens"), "AnthropicErrorResponse"
)
#: Its answer has a secret cookie, which must not be stored.
SIGN_IN = "/v1/session"
#: It refuses every request.
NEVER_SUCCEEDS = "/v1/responses/{response_id}"


@pytest.fixture(scope="module")
def document(site: Site) -> dict[str, Any]:
    with site.client(None) as client:
        client.get("/openapi.json")
        # Fetch the document twice: what the first call adds must not be added again.
        return client.get("/openapi.json").json()


def test_operations_have_short_unique_ids(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for *_, operation in operations(document)]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert [name for name in ids if not re.fullmatch(r"[a-z][A-Za-z]{2,29}", name)] == []
    assert {"createChatCompletion", "listAdapters", "listTenantAdapters", "createPlatformKey"} <= set(ids)


def test_operations_are_described(document: dict[str, Any]) -> None:
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    used = set()
    for path, method, operation in operations(document):
        assert operation["summary"].strip(), (path, method)
        assert len(operation["description"]) > len("Needs a key."), (path, method)
        assert len(operation["tags"]) == 1, (path, method)
        used |= set(operation["tags"])
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (path, method, parameter["name"])
    assert used == tags.keys()
    assert document["servers"] == [{"url": "/", "description": "This server"}]


def test_components_have_clean_names_and_no_titles(document: dict[str, Any]) -> None:
    for kind in ("schemas", "responses", "headers"):
        names = document["components"][kind]
        assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name)] == []
        assert [name for name in names if re.search("Out$|-|_", name)] == []
    assert [schema["title"] for schema in schemas_in(document) if "title" in schema] == []


def test_schemas_can_be_generated_from(document: dict[str, Any]) -> None:
    for schema in schemas_in(document):
        kinds = schema.get("type", ())
        assert isinstance(kinds, str) or not kinds, f"a list of types: {schema}"
        assert kinds != "array" or "items" in schema, f"an array of anything: {schema}"
        assert schema.get("default", "") is not None, f"a default of null: {schema}"


def test_references_have_targets_that_are_used(document: dict[str, Any]) -> None:
    found = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    named = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in
             document["components"][kind]}  # fmt: skip
    assert found == named


def test_examples_match_their_schemas(document: dict[str, Any]) -> None:
    count = 0
    for path, method, operation in operations(document):
        answers = [resolved(document, answer) for answer in operation["responses"].values()]
        for holder in (operation.get("requestBody", {}), *answers):
            for media in holder.get("content", {}).values():
                if "example" in media:
                    errors = Draft202012Validator(standalone(document, media["schema"])).iter_errors(media["example"])
                    assert [error.message for error in errors] == [], (path, method)
                    count += 1
    assert count > 500


def test_bodies_and_answers_have_examples(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        bodies = operation.get("requestBody", {}).get("content", {})
        for kind, media in [*bodies.items(), *successes(operation)]:
            binary = kind in {"application/octet-stream", "multipart/form-data"}
            assert binary != ("example" in media), (path, method, kind)
        assert path == NEVER_SUCCEEDS or any(status < "300" for status in operation["responses"]), (path, method)


def test_all_but_the_probes_ask_for_a_key(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert (schemes["header"]["in"], schemes["header"]["name"]) == ("header", "x-api-key")
    for path, method, operation in operations(document):
        keys = operation["security"]
        assert keys == ([] if path.startswith("/health") else [{"bearer": []}, {"header": []}]), (path, method)
        assert ("401" in operation["responses"]) == bool(keys), (path, method)


def test_the_required_scope_is_the_one_that_the_server_requires(site: Site, document: dict[str, Any]) -> None:
    """Call each operation with a key of another scope. The 403 names the scope that is missing."""
    with site.client(site.admin_key) as admin:
        assert admin.post("/admin/tenants", json={"slug": "scoped"}).status_code == 201
        bodies = {"name": "test", "scopes": ["usage:read"]}, {"name": "test", "scopes": ["inference"]}
        keys = {body["scopes"][0]: admin.post("/admin/tenants/scoped/keys", json=body).json()["key"] for body in bodies}
    count = 0
    for path, method, operation in operations(document):
        if (required := operation.get("x-required-scope")) is None:
            continue
        key = keys["inference" if required == Scope.USAGE_READ else "usage:read"]
        filled = re.sub(r"\{number\}", "1", path.replace("{tenant}", "scoped"))
        with site.client(key) as client:
            answer = client.request(method, re.sub(r"\{\w+\}", "x", filled), json={})
        assert answer.status_code == 403, (path, method, answer.text)
        assert required in answer.text, (path, method)
        assert f"`{required}`" in operation["description"], (path, method)
        count += 1
    assert count > 100


def test_what_takes_a_body_has_a_cap(document: dict[str, Any]) -> None:
    caps = {"400", "408", "413", "415"}
    capped = [operation for *_, operation in operations(document) if caps <= operation["responses"].keys()]
    assert capped == [operation for *_, operation in operations(document) if "requestBody" in operation]
    assert len(capped) > 30


def test_posts_that_change_something_take_an_idempotency_key(document: dict[str, Any]) -> None:
    found = 0
    for path, method, operation in operations(document):
        named = [one["name"] for one in operation.get("parameters", []) if one["name"] == "Idempotency-Key"]
        repeatable = path not in INFERENCE | {SIGN_IN}
        assert named == (["Idempotency-Key"] if method == "post" and repeatable else []), (path, method)
        assert not named or {"400", "409", "429"} <= operation["responses"].keys(), (path, method)
        found += len(named)
    assert found > 10


@pytest.mark.parametrize(
    ("path", "names", "required"),
    [
        ("/v1/completions", COMPLETIONS.names, ["prompt"]),
        ("/v1/chat/completions", CHAT.names, ["messages"]),
        ("/v1/responses", RESPONSES.names, ["input"]),
        ("/v1/messages", MESSAGES.names, ["max_tokens", "messages"]),
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
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = resolved(document, schema)
    assert body["properties"].keys() == names
    assert (body.get("required", []), body["additionalProperties"]) == (required, False)
    if "parameters" in names:
        assert document["components"]["schemas"]["LoraxParameters"]["properties"].keys() == LORAX.names


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
        ("/v1/usage", {"application/json", "text/csv"}),
        ("/metrics", {"text/plain"}),
        ("/v1/adapters/{adapter}/versions/{number}/files/{name}", {"application/octet-stream", "application/json"}),
    ],
)
def test_answers_have_the_kinds_that_are_sent(document: dict[str, Any], path: str, kinds: set[str]) -> None:
    (operation,) = document["paths"][path].values()
    content = operation["responses"]["200"]["content"]
    assert content.keys() == kinds
    assert all(content[kind]["schema"]["type"] == "string" for kind in kinds if kind.startswith("text/"))


def test_errors_have_the_envelope_of_their_api(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        envelope = ENVELOPES.get(path, "ErrorResponse")
        for status, reference in operation["responses"].items():
            if status >= "400" and path != "/health/ready":
                answer = resolved(document, reference)
                media = answer["content"]["application/json"]
                assert media["schema"]["$ref"].endswith(f"/{envelope}"), (path, method, status)
                assert media["example"], (path, method, status)
                assert "x-request-id" in answer["headers"], (path, method, status)


def test_the_calls_of_a_tenant_are_those_of_its_path(document: dict[str, Any]) -> None:
    """Both mounts of a router have the same bodies, answers and headers."""
    found: dict[str, Operation] = {one[2]["operationId"]: one for one in operations(document)}
    both = [(name, name.replace("Tenant", "", 1)) for name in found if name.replace("Tenant", "", 1) in found]
    pairs = [(mine, own) for mine, own in both if mine != own]
    assert len(pairs) > 40
    for name, own in pairs:
        first, second = found[name][2], found[own][2]
        assert first["responses"] == second["responses"], name
        assert first.get("requestBody") == second.get("requestBody"), name
