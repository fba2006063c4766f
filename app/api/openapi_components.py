"""Components of the OpenAPI document: schemas of models that no route declares, and streams of events."""

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import SkipJsonSchema

SCHEMAS = "#/components/schemas/"

#: Type of a field that may be missing but is never null: ``str | Absent = None``.
Absent = SkipJsonSchema[None]


def reference(name: str) -> dict[str, Any]:
    """Build a reference to a schema."""
    return {"$ref": f"{SCHEMAS}{name}"}


def schemas_of(kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of types by name, and those of the models that they consist of."""
    schemas: dict[str, Any] = {}
    for name, kind in kinds.items():
        schema = TypeAdapter(kind).json_schema(ref_template=f"{SCHEMAS}{{model}}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return schemas


def event_stream(data: dict[str, Any], description: str, *, end: str | None = None) -> dict[str, Any]:
    """Build the schema of a stream of server-sent events.

    Generators see a string. OpenAPI 3.1 cannot describe the events, so JSON Schema's ``contentSchema`` does.

    Args:
        data: schema of the JSON value in an event's ``data``.
        end: ``data`` of the last event, if that is not JSON.
    """
    content: dict[str, Any] = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if end is not None:
        content = {"anyOf": [content, {"type": "string", "const": end}]}
    event = {"type": "object", "properties": {"data": content}, "required": ["data"]}
    return {
        "type": "string",
        "description": description,
        "contentMediaType": "text/event-stream",
        "contentSchema": {"type": "array", "items": event},
    }


def event_data(stream: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the JSON value in an event's ``data``, from the schema of a stream."""
    content = stream["contentSchema"]["items"]["properties"]["data"]
    found: dict[str, Any] = content.get("anyOf", [content])[0]["contentSchema"]
    return found
