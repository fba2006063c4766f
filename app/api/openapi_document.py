"""OpenAPI document: FastAPI's description of the routes, completed with rules that many routes share.

Authentication, body caps and ``Idempotency-Key`` are handled outside the routes, so the routes do not declare them.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.api import events
from app.api.auth import ACT_AS, SCOPES
from app.api.idempotency import PATHS
from app.api.inference_schemas import components
from app.api.openapi_components import reference, schemas_of
from app.api.openapi_errors import error_reference, error_responses
from app.api.openapi_examples import add_examples
from app.api.openapi_headers import HEADERS, REQUEST_ID, header, success_headers
from app.api.openapi_names import name_components
from app.api.upload_schemas import PublishOptions
from app.domain.access import Scope
from app.services.access.idempotency import HEADER

#: Base of all paths.
SERVERS: list[dict[str, Any]] = [{"url": "/", "description": "This server"}]

#: Tags of operations, in the order of the documentation.
TAGS: list[dict[str, Any]] = [
    {"name": "openai", "description": "OpenAI's API: completions, chats, Responses and models."},
    {"name": "anthropic", "description": "Anthropic's API: Messages."},
    {"name": "lorax", "description": "LoRAX's API, as the published lorax-client uses it."},
    {"name": "tokens", "description": "The tokenizer: tokens of a prompt, and the text of tokens."},
    {"name": "batches", "description": "OpenAI's API for batches: files, uploads in parts, batches."},
    {"name": "adapters", "description": "Adapters and their versions: publish, describe, retire and delete."},
    {"name": "aliases", "description": "Movable names of versions, split traffic and canaries."},
    {"name": "sharing", "description": "Adapters that other tenants may use."},
    {"name": "pins", "description": "Engine slots that are reserved for a version."},
    {"name": "deletions", "description": "Reports of deletions: which copies are verified as gone."},
    {"name": "events", "description": "Feeds of changes, as server-sent events."},
    {"name": "usage", "description": "Usage reports, and limits with what is left of them."},
    {"name": "tenants", "description": "Business units that own adapters, keys and limits."},
    {"name": "keys", "description": "API keys of tenants and of the platform."},
    {"name": "prices", "description": "Prices of tokens."},
    {"name": "engine", "description": "Status of the engine: slots, tiers, queues and load times."},
    {"name": "operations", "description": "Probes and metrics."},
]

_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tnr_...`"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "`x-api-key: tnr_...`"},
}

_IDEMPOTENCY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    "description": "Unique key of this request. Repeating the request with the same key within 24 hours returns the "
    "first answer without running it twice. A different request with the same key gets 409.",
}

_ACT_AS = {
    "name": ACT_AS,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 63},
    "description": "Slug of a tenant, with a platform key: the request runs as one of this tenant. It is charged to "
    "the tenant and recorded in the audit trail.",
}

_PARAMETERS = {
    "adapter": "Name of the adapter",
    "alias": "Name of the alias",
    "batch_id": "Id of the batch",
    "deletion": "Id of the deletion",
    "file_id": "Id of the file",
    "key_id": "Public id of the key",
    "model": "`default`, `base` or `tenant/adapter`",
    "model_id": "Name of the model, in any form that `model` accepts",
    "owner": "Slug of the tenant that shares the adapter",
    "recipient": "Slug of the tenant that the adapter is shared with",
    "response_id": "Id of a response",
    "tenant": "Slug of the tenant",
    "upload_id": "Id of the upload",
}

#: Bodies with ``options`` of a publication.
_PUBLISHING = ("ImportRequest", "MergeRequest", "UploadCreate")
#: Scope by the tag of routes that check their key themselves.
_SCOPE_OF_TAG = dict.fromkeys(("openai", "anthropic", "lorax", "tokens"), Scope.INFERENCE)
_TENANT_PATH = "/admin/tenants/{tenant}/"
#: Routes for keys of tenants and of the platform.
_ANY_KEY = frozenset({"/v1/key", "/v1/server", "/v1/session"})
#: Route whose 503 is a report and no error.
_READY = "/health/ready"


def operation_id(route: APIRoute) -> str:
    """Return the id of a route's operation: the name of its function in camel case.

    Routers that are mounted twice get a word after the verb: ``listAdapters`` for a tenant's own keys is
    ``listTenantAdapters`` under ``/admin/tenants/{tenant}``.
    """
    verb, *words = route.name.split("_")
    if route.path.startswith(_TENANT_PATH):
        words.insert(0, "tenant")
    elif route.path.startswith("/admin/keys"):
        words.insert(0, "platform")
    return _camel_case(verb, *words)


def install(app: FastAPI) -> None:
    """Complete the application's OpenAPI document."""
    from_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            routes = {route.unique_id: route for route in app.routes if isinstance(route, APIRoute)}
            _complete(from_routes(), routes)
        # FastAPI caches the document and returns the same object to every caller.
        return from_routes()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], routes: dict[str, APIRoute]) -> None:
    parts = document["components"]
    for name, schema in (components() | schemas_of(events.FEED | {"PublishOptions": PublishOptions})).items():
        parts["schemas"].setdefault(name, schema)
    for name in _PUBLISHING:
        parts["schemas"][name]["properties"]["options"] = reference("PublishOptions")
    name_components(document)
    parts["securitySchemes"], parts["headers"] = _SECURITY_SCHEMES, HEADERS
    for path, method, operation in _operations(document):
        route = routes[operation["operationId"]]
        if "401" in operation["responses"]:
            _secure(path, operation, _scope_of(route))
        else:
            operation["security"] = []
        if route.tags[0] in _SCOPE_OF_TAG and "401" in operation["responses"]:
            operation.setdefault("parameters", []).append(_ACT_AS)
        if method == "post" and PATHS.fullmatch(path):
            operation.setdefault("parameters", []).append(_IDEMPOTENCY)
        for parameter in operation.get("parameters", ()):
            if "description" not in parameter:
                parameter["description"] = _PARAMETERS[parameter["name"]]
        _complete_responses(path, operation, route)
    answers = [answer for *_, operation in _operations(document) for answer in operation["responses"].values()]
    parts["responses"] = error_responses(answer["$ref"] for answer in answers if "$ref" in answer)
    add_examples(document)


def _complete_responses(path: str, operation: dict[str, Any], route: APIRoute) -> None:
    responses: dict[str, Any] = operation["responses"]
    replayed = any(item["name"] == HEADER for item in operation.get("parameters", ()))
    errors = {int(status) for status in responses if status >= "400" and path != _READY}
    errors |= {400, 409, 429} if replayed else set()
    errors |= {400, 408, 413, 415} if "requestBody" in operation else set()
    for status, response in responses.items():
        if status < "400":
            response["headers"] = success_headers(_camel_case(*route.name.split("_")), status)
            if replayed:
                response["headers"] |= dict([header("Replayed")])
        elif path == _READY:
            response["headers"] = dict([header(REQUEST_ID), header("RetryAfter")])
    for error in errors:
        responses[str(error)] = error_reference(path, error)
    operation["responses"] = dict(sorted(responses.items()))


def _secure(path: str, operation: dict[str, Any], scope: Scope | None) -> None:
    """Add the security requirement, the scope, and a sentence about both."""
    operation["security"] = [{scheme: []} for scheme in _SECURITY_SCHEMES]
    # Linters accept scopes in `security` for OAuth only.
    operation["x-required-scope"] = None if scope is None else scope.value
    operation["description"] = f"{operation['description']}\n\n{_sentence(path, scope)}"


def _sentence(path: str, scope: Scope | None) -> str:
    if path in _ANY_KEY:
        return "Needs any valid key."
    if scope is None:
        return "Needs a tenant's key with any scope."
    if scope is Scope.ADMIN:
        return "Needs a platform key with the scope `admin`."
    if scope is Scope.METRICS:
        return "Needs a platform key with the scope `metrics` or `admin`, unless the settings open the route."
    if path.startswith(_TENANT_PATH):
        return f"Needs a platform key, or a key of this tenant with the scope `{scope.value}`."
    return f"Needs a tenant's key with the scope `{scope.value}`."


def _scope_of(route: APIRoute) -> Scope | None:
    """Return the scope of the route's dependencies. Routes without one check the key by themselves."""
    found = [SCOPES[call] for call in _calls(route.dependant) if call in SCOPES]
    if found:
        return found[0]
    if route.path == "/metrics":
        return Scope.METRICS
    return _SCOPE_OF_TAG.get(str(route.tags[0]))


def _calls(dependant: Dependant) -> Iterator[Any]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _calls(dependency)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _camel_case(first: str, *words: str) -> str:
    return first + "".join(word.capitalize() for word in words)
