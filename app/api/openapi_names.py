"""Names in the OpenAPI document: components without Python's suffixes, and schemas without generated titles."""

import re
from typing import Any

_COMPONENTS = "#/components/schemas/"
# FastAPI's name of ListOut[AdapterOut].
_LIST = re.compile(r"ListOut_(\w+)_")
#: Keywords whose value maps names to schemas.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "schemas"})
#: Keywords whose value is data, not a schema.
_DATA = frozenset({"default", "const", "enum", "example", "examples"})


def component_name(name: str) -> str:
    """Return the public name of a component: ``AdapterOut`` becomes ``Adapter``, a page of them ``AdapterList``."""
    if found := _LIST.fullmatch(name):
        return f"{component_name(found[1])}List"
    return name.removesuffix("Out")


def name_components(document: dict[str, Any]) -> None:
    """Rename components with their references. Drop defaults of null, and titles, from which generators derive names.

    Raises:
        ValueError: two components would get the same name.
    """
    schemas = document["components"]["schemas"]
    names = {name: component_name(name) for name in schemas}
    if len(set(names.values())) != len(names):
        raise ValueError(f"Two components share a name: {sorted(names.values())}. Rename one of their classes.")
    document["components"]["schemas"] = {names[name]: schema for name, schema in sorted(schemas.items())}
    for part in (document["components"]["schemas"].values(), document["paths"].values()):
        for schema in part:
            _rename(schema, names)


def _rename(node: Any, names: dict[str, str]) -> None:
    if isinstance(node, list):
        for item in node:
            _rename(item, names)
    elif isinstance(node, dict):
        _rename_schema(node, names)


def _rename_schema(node: dict[str, Any], names: dict[str, str]) -> None:
    if isinstance(node.get("title"), str):
        del node["title"]
    if node.get("default", "") is None:
        del node["default"]
    reference = node.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_COMPONENTS)
        node["$ref"] = _COMPONENTS + names.get(name, name)
    for key, value in node.items():
        if key in _NAMED and isinstance(value, dict):
            _rename(list(value.values()), names)
        elif key not in _DATA:
            _rename(value, names)
