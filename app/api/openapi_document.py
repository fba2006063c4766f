"""OpenAPI document: FastAPI's description of the routes, completed with rules that many routes share.

Authentication, body caps and ``Idempotency-Key`` are handled outside the routes, so the routes do not declare them.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.api.errors import ANTHROPIC_PATHS, LORAX_PATHS
from app.api.idempotency import PATHS
from app.api.openapi_names import component_name, name_components
from app.api.schemas import ERRORS, AnthropicErrorResponse, ErrorResponse, LoraxErrorResponse
from app.services.access.idempotency import HEADER

_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tnr_...`"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_SECURITY: list[dict[str, list[str]]] = [{name: []} for name in _SECURITY_SCHEMES]

_IDEMPOTENCY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    "description": "Unique key of this request. Repeating the request with the same key within 24 hours returns the "
    "first answer without running it twice. A different request with the same key gets 409.",
}


def operation_id(route: APIRoute) -> str:
    """Return the id of a route's operation: the name of its function in camel case.

    Routers that are mounted twice get a word after the verb: ``listAdapters`` for a tenant's own keys is
    ``listTenantAdapters`` under ``/admin/tenants/{tenant}``.
    """
    verb, *words = route.name.split("_")
    if route.path.startswith("/admin/tenants/{tenant}/"):
        words.insert(0, "tenant")
    elif route.path.startswith("/admin/keys"):
        words.insert(0, "platform")
    return verb + "".join(word.capitalize() for word in words)


def install(app: FastAPI) -> None:
    """Complete the application's OpenAPI document."""
    from_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(from_routes())
        # FastAPI caches the document and returns the same object to every caller.
        return from_routes()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    name_components(document)
    for path, method, operation in _operations(document):
        errors: list[int] = []
        if "401" in operation["responses"]:
            operation["security"] = _SECURITY
        if method == "post" and PATHS.fullmatch(path):
            operation.setdefault("parameters", []).append(_IDEMPOTENCY)
            errors += [400, 409]
        if "requestBody" in operation:
            errors += [400, 413, 415]
        envelope = _envelope(path)
        content = {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{component_name(envelope.__name__)}"}}
        }
        for status in errors:
            operation["responses"].setdefault(str(status), {"description": ERRORS[status], "content": content})


def _envelope(path: str) -> type[BaseModel]:
    if path in LORAX_PATHS:
        return LoraxErrorResponse
    return AnthropicErrorResponse if path in ANTHROPIC_PATHS else ErrorResponse


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation
