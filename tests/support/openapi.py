"""Access to the parts of an OpenAPI document."""

import json
from collections.abc import Iterator
from typing import Any

#: Path, method and description of an operation.
Operation = tuple[str, str, dict[str, Any]]

_NAMED = ("properties", "patternProperties", "$defs")
_NESTED = ("items", "additionalProperties", "contentSchema", "not")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def resolved(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the component that a node refers to, or the node itself."""
    if "$ref" not in node:
        return node
    _, *parts = node["$ref"].split("/")
    target: Any = document
    for part in parts:
        target = target[part]
    return dict(target)


def successes(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return media type and content of an operation's successful answers."""
    for status, answer in operation["responses"].items():
        if status < "300":
            yield from answer.get("content", {}).items()


def standalone(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that can be used without its document."""
    text = json.dumps({**schema, "$defs": document["components"]["schemas"]})
    return dict(json.loads(text.replace('"#/components/schemas/', '"#/$defs/')))


def with_event_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as schemathesis reads it: the schema of an event stream is that of one event."""
    copied: dict[str, Any] = json.loads(json.dumps(document))
    for *_, operation in operations(copied):
        for kind, media in successes(operation):
            if kind == "text/event-stream":
                media["schema"] = media["schema"]["contentSchema"]["items"]
    return copied


def schemas_in(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every schema of a document: components, bodies, answers, parameters, and the schemas inside them."""
    for schema in document["components"]["schemas"].values():
        yield from _nested(schema)
    for *_, operation in operations(document):
        holders = [operation.get("requestBody", {}), *operation["responses"].values()]
        media = [media for holder in holders for media in holder.get("content", {}).values()]
        for node in (*media, *operation.get("parameters", ())):
            yield from _nested(node["schema"])


def _nested(schema: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict):
        return
    yield schema
    for key in _NAMED:
        for inner in schema.get(key, {}).values():
            yield from _nested(inner)
    for key in _NESTED:
        yield from _nested(schema.get(key))
    for key in _LISTED:
        for inner in schema.get(key, ()):
            yield from _nested(inner)
