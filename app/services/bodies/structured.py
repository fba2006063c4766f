"""Structured output and tools: checks of JSON schemas, regular expressions and choices from untrusted clients.

The engine compiles them into grammars over its vocabulary. The caps here limit the inputs that make compilation slow:
bytes and depth of a schema, length and quantifiers of a regular expression, references that leave the document.
See docs/decisions/0024-bounds-of-structured-output.md.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_checks
from app.services.bodies.field_checks import (
    fields,
    known_fields,
    one_of,
    other_fields,
    over_limit,
    refuse,
    refuse_item,
    text,
)
from app.services.bodies.parsing import loads, shown
from app.settings import LimitSettings

_SCHEMA_DEPTH = 32
_REGEX_CHARS = 2048
# Compile time grows with the square of the optional parts of one pattern.
_REGEX_QUANTIFIERS = 64
# Required or allowed array items, and bounds of numbers, in all schemas of a field together (all tools, for example).
# Both cost compile time in the process that serves all tenants.
_SCHEMA_ITEMS = 10_000
_SCHEMA_BOUNDS = 128
_CHOICES = 1024
_TOOLS = 128
_TOOL_FIELDS = ("type", "function")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NAME_WORDS = "1 to 64 characters of A-Z, a-z, 0-9, _ and -"
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_ITEMS = ("minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def schema(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """Check a JSON schema: an object of bounded size and depth without external references."""
    if not isinstance(value, dict):
        raise refuse(path, value, "a JSON schema (an object)")
    for node in _nodes(value, path):
        _check_node(node, path, limits)
    _counted([value], path)
    sized(value, path, limits)
    return value


def sized(value: Any, path: str, limits: LimitSettings) -> None:
    """Refuse a structured value whose JSON is larger than ``limits.schema_bytes``."""
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > limits.schema_bytes:
        raise over_limit(path, size, "bytes", limits.schema_bytes)


def regex(value: Any, path: str, limits: LimitSettings) -> str:
    """Check a regular expression: short and simple enough to compile."""
    longest = min(_REGEX_CHARS, limits.schema_bytes)
    if not 1 <= len(text(value, path)) <= longest or "\0" in value:
        raise refuse(path, value, f"a regular expression of 1 to {longest} characters without NUL")
    quantifiers = sum(_ESCAPED.sub("", value).count(char) for char in "*+?{")
    if quantifiers > _REGEX_QUANTIFIERS:
        raise over_limit(path, quantifiers, "quantifiers", _REGEX_QUANTIFIERS)
    return str(value)


def choice(value: Any, path: str, limits: LimitSettings) -> list[str]:
    """Check the list of texts to which an answer is restricted."""
    if not isinstance(value, list) or not 1 <= len(value) <= _CHOICES:
        raise refuse(path, value, f"an array of 1 to {_CHOICES} strings")
    for item in value:
        if not isinstance(item, str) or not item:
            raise refuse_item(path, item, "a non-empty string")
    sized(value, path, limits)
    return value


def response_format(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """Check OpenAI's ``response_format``: text, json_object or json_schema."""
    form = fields(value, path, {"type", "json_schema"}, required=("type",))
    kind = one_of("text", "json_object", "json_schema")(form["type"], f"{path}.type", limits)
    where = f"{path}.json_schema"
    if kind != "json_schema":
        if "json_schema" in form:
            message = f"{where} is allowed only if {path}.type is 'json_schema'; it is {shown(kind)}."
            raise InvalidRequest(message, param=where)
        return {"type": kind}
    inner = fields(
        form.get("json_schema"), where, {"name", "description", "schema", "strict"}, required=("name", "schema")
    )
    _described(inner, where, limits)
    schema(inner["schema"], f"{where}.schema", limits)
    sized(inner, where, limits)
    return {"type": kind, "json_schema": inner}


def lorax_format(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """Check LoRAX's ``response_format`` and translate it to vLLM's ``structured_outputs``."""
    form = fields(value, path, {"type", "schema"}, required=("type",))
    one_of("json_object")(form["type"], f"{path}.type", limits)
    if "schema" not in form:
        return {"json_object": True}
    return {"json": schema(form["schema"], f"{path}.schema", limits)}


def structured_outputs(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """Check vLLM's ``structured_outputs``: exactly one of json, regex, choice and json_object, and two switches."""
    switches = {"disable_any_whitespace", "disable_additional_properties"}
    options = fields(value, path, {*_CONSTRAINTS, *switches})
    if sum(name in options for name in _CONSTRAINTS) != 1:
        raise InvalidRequest(f"{path} must have exactly one of {', '.join(_CONSTRAINTS)}.", param=path)
    table: dict[str, field_checks.Check] = dict.fromkeys(switches, field_checks.boolean) | _CONSTRAINTS
    return {name: table[name](item, f"{path}.{name}", limits) for name, item in options.items()}


def json_constraint(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """Check a JSON schema. vLLM's clients may also send it as a text."""
    if not isinstance(value, str):
        return schema(value, path, limits)
    if (size := len(value.encode())) > limits.schema_bytes:
        raise over_limit(path, size, "bytes", limits.schema_bytes)
    try:
        return schema(loads(value), path, limits)
    except (ValueError, RecursionError):
        raise refuse(path, value, "a JSON schema") from None


def tools(value: Any, path: str, limits: LimitSettings) -> list[dict[str, Any]]:
    """Check OpenAI's tools. Only functions are supported. Other keys of a tool are ignored, as in the engine."""
    if not isinstance(value, list) or len(value) > _TOOLS:
        raise refuse(path, value, f"an array of at most {_TOOLS} tools")
    checked = [_tool(item, f"{path}.{index}", limits) for index, item in enumerate(value)]
    _counted((tool["function"].get("parameters") for tool in checked), path)
    sized(checked, path, limits)
    return checked


def ignored_of_tools(value: list[dict[str, Any]]) -> Iterator[str]:
    """Return the names of ignored keys in tools that passed :func:`tools`, some of them repeatedly."""
    for tool in value:
        yield from other_fields(tool, "tools[]", _TOOL_FIELDS)


def tool_choice(value: Any, path: str, limits: LimitSettings) -> Any:
    """Check ``none``, ``auto``, ``required``, or the function to call."""
    if isinstance(value, str):
        return one_of("none", "auto", "required")(value, path, limits)
    selected = fields(value, path, {"type", "function"}, required=("type", "function"))
    one_of("function")(selected["type"], f"{path}.type", limits)
    function = fields(selected["function"], f"{path}.function", {"name"}, required=("name",))
    _name(function["name"], f"{path}.function.name")
    return {"type": "function", "function": function}


_CONSTRAINTS: dict[str, field_checks.Check] = {
    "json": json_constraint,
    "regex": regex,
    "choice": choice,
    "json_object": one_of(True),
}


def merge_guided(body: dict[str, Any]) -> None:
    """Move the older names ``guided_json``, ``guided_regex`` and ``guided_choice`` into ``structured_outputs``.

    Raises:
        InvalidRequest: the body has more than one constraint on the form of the answer.
    """
    guided = [name for name in body if name.startswith("guided_")]
    formats = [name for name in ("structured_outputs", *guided) if name in body]
    if body.get("response_format", {}).get("type", "text") != "text":
        formats.append("response_format")
    if len(formats) > 1:
        message = f"{formats[1]} cannot be combined with {formats[0]}. Send only one of them."
        raise InvalidRequest(message, param=formats[1])
    for name in guided:
        body["structured_outputs"] = {name.removeprefix("guided_"): body.pop(name)}


def _tool(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "function":
        raise UnsupportedField(f"{path}.type is {shown(kind)}; it must be 'function'.", param=f"{path}.type")
    if value.get("defer_loading"):
        # The engine would withhold the tool from the model at first.
        raise UnsupportedField(f"{path}.defer_loading is not supported.", param=f"{path}.defer_loading")
    tool = known_fields(value, path, _TOOL_FIELDS)
    where = f"{path}.function"
    function = fields(tool.get("function"), where, {"name", "description", "parameters", "strict"}, required=("name",))
    _described(function, where, limits)
    if "parameters" in function:
        schema(function["parameters"], f"{where}.parameters", limits)
    return {"type": "function", "function": function}


def _described(value: dict[str, Any], path: str, limits: LimitSettings) -> None:
    _name(value["name"], f"{path}.name")
    if "description" in value:
        text(value["description"], f"{path}.description")
    if "strict" in value:
        field_checks.boolean(value["strict"], f"{path}.strict", limits)


def _name(value: Any, path: str) -> None:
    if not _NAME.fullmatch(text(value, path)):
        raise refuse(path, value, _NAME_WORDS)


def _nodes(root: Any, path: str) -> Iterator[Any]:
    """Yield every value in a schema. Iterative, because the depth is not trusted."""
    pending: list[tuple[Any, int]] = [(root, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > _SCHEMA_DEPTH:
            raise InvalidRequest(f"{path} is nested too deeply; the limit is {_SCHEMA_DEPTH} levels.", param=path)
        yield node
        if isinstance(node, dict):
            pending.extend((item, depth + 1) for item in node.values())
        elif isinstance(node, list):
            pending.extend((item, depth + 1) for item in node)


def _counted(schemas: Iterable[Any], path: str) -> None:
    """Refuse schemas that together exceed the caps on array items or bounds of numbers."""
    objects = [node for root in schemas for node in _nodes(root, path) if isinstance(node, dict)]
    items = sum(max(0, *(_number(node.get(name)) for name in _ITEMS)) for node in objects)
    if items > _SCHEMA_ITEMS:
        counted = f"{items:.0f} array items by {' and '.join(_ITEMS)}"
        raise InvalidRequest(f"{path} has {counted}; the limit is {_SCHEMA_ITEMS} in all.", param=path)
    bounds = sum(_number(node.get(name)) != 0 for node in objects for name in _BOUNDS)
    if bounds > _SCHEMA_BOUNDS:
        raise over_limit(path, bounds, "bounds of numbers", _SCHEMA_BOUNDS)


def _number(value: Any) -> float:
    """Return a number, or 0 for any other value: a keyword may also be a property's name, with a schema as value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _check_node(node: Any, path: str, limits: LimitSettings) -> None:
    if isinstance(node, dict):
        _check_object(node, path, limits)
    elif isinstance(node, float) and not math.isfinite(node):
        raise InvalidRequest(f"{path} has a number beyond the range of a double.", param=path)


def _check_object(node: dict[str, Any], path: str, limits: LimitSettings) -> None:
    for name in _REFERENCES:
        target = node.get(name)
        if isinstance(target, str) and not target.startswith("#"):
            raise refuse(f"{path}.{name}", target, "a reference inside the schema (#...)")
    properties = node.get("patternProperties")
    patterns = [node.get("pattern"), *(properties if isinstance(properties, dict) else ())]
    for pattern in patterns:
        if isinstance(pattern, str) and pattern:
            regex(pattern, f"{path}.pattern", limits)
