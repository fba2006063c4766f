"""Structured output and tools: bounds on the grammars that callers may have compiled."""

import pytest

from app.domain.errors import InvalidRequest, TenoraError, UnsupportedField
from app.services.bodies.openai import completion_body
from app.settings import LimitSettings

LIMITS = LimitSettings()
SCHEMA = {
    "$defs": {"money": {"type": "number", "minimum": 0}},
    "type": "object",
    "properties": {"price": {"$ref": "#/$defs/money"}, "code": {"type": "string", "pattern": r"^[A-Z]{3}-\d+$"}},
    "required": ["price"],
}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def forwarded(**given):
    body = completion_body({"prompt": "x", **given}, LIMITS)
    return {name: value for name, value in body.items() if name != "prompt"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_regex": r"\d{3}"}, {"structured_outputs": {"regex": r"\d{3}"}}),
        ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}),
        ({"guided_json": '{"type": "string"}'}, {"structured_outputs": {"json": {"type": "string"}}}),
        (
            {"structured_outputs": {"json_object": True, "regex": None, "disable_any_whitespace": True}},
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        ),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "p", "schema": SCHEMA, "strict": True},
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "p", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (
            {"response_format": {"type": "text"}, "guided_choice": ["a"]},
            {"response_format": {"type": "text"}, "structured_outputs": {"choice": ["a"]}},
        ),
    ],
)
def test_every_spelling_reaches_the_engine_in_the_one_it_knows(given, expected):
    assert forwarded(**given) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"json": 5}},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"json": "[" * 60_000}},
        {"structured_outputs": {"json": '{"maximum": 1e999}'}},
        {"structured_outputs": {"json": True}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": 1}},
        {"guided_json": {"description": "x" * 70_000}},
        {"guided_json": nested(40)},
        {"guided_json": nested(50_000)},
        {"guided_json": {"type": "array", "minItems": 10**7}},
        {"guided_json": {"type": "array", "maxItems": 1e7}},
        {"guided_json": {"prefixItems": [{"type": "array", "maxItems": 1000 + item} for item in range(10)]}},
        {"guided_json": {"prefixItems": [{"type": "integer", "minimum": 1, "maximum": item} for item in range(66)]}},
        {"guided_json": {"$ref": "http://example.com/schema"}},
        {"guided_json": {"properties": {"a": {"$ref": "file:///etc/passwd"}}}},
        {"guided_json": {"anyOf": [{"$dynamicRef": "other.json#x"}]}},
        {"guided_json": {"maximum": float("inf")}},
        {"guided_json": {"type": "string", "pattern": "a?" * 65}},
        {"guided_json": {"patternProperties": {"a*" * 65: {}}}},
        {"guided_regex": ""},
        {"guided_regex": "a" * 2049},
        {"guided_regex": "a?" * 65},
        {"guided_regex": "a\0b"},
        {"guided_regex": 5},
        {"guided_choice": []},
        {"guided_choice": ["a"] * 1025},
        {"guided_choice": ["x" * 70_000]},
        {"guided_choice": ["", "a"]},
        {"guided_choice": "a"},
        {"guided_choice": ["a"], "guided_regex": "a"},
        {"guided_choice": ["a"], "structured_outputs": {"regex": "a"}},
        {"guided_choice": ["a"], "response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "description": 5}}},
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
    ],
)
def test_what_would_be_slow_or_is_malformed_is_refused(given):
    with pytest.raises(InvalidRequest) as caught:
        forwarded(**given)
    assert caught.value.param.split(".")[0] in given


@pytest.mark.parametrize(
    "given",
    [
        {"structured_outputs": {"grammar": "root ::= x"}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " *"}},
        {"structured_outputs": {"regex": "a", "_backend": "outlines"}},
        {"response_format": {"type": "text", "extra": 1}},
    ],
)
def test_other_parts_of_structured_output_are_refused_by_name(given):
    with pytest.raises(UnsupportedField):
        forwarded(**given)


def test_property_names_may_be_keywords():
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}}
    assert forwarded(guided_json=schema) == {"structured_outputs": {"json": schema}}


def test_escaped_quantifiers_do_not_count():
    assert forwarded(guided_regex=r"\?" * 100) == {"structured_outputs": {"regex": r"\?" * 100}}


def test_the_cap_is_the_settings():
    small = LimitSettings(schema_bytes=256)
    with pytest.raises(TenoraError, match="256"):
        completion_body({"prompt": "x", "guided_json": {"description": "x" * 300}}, small)
    with pytest.raises(TenoraError, match="256"):
        completion_body({"prompt": "x", "guided_regex": "x" * 300}, small)
