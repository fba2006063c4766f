"""OpenAPI fragments of the inference routes, generated from the list of fields."""

from typing import Any

from app.api.inference_headers import DEADLINE, IGNORED
from app.services.bodies import field_table
from app.services.bodies.field_table import LORAX, FieldTable

_STRING: dict[str, Any] = {"type": ["string", "null"]}
_BOOLEAN: dict[str, Any] = {"type": ["boolean", "null"]}
_COUNT: dict[str, Any] = {"type": ["integer", "null"]}
_NUMBER: dict[str, Any] = {"type": ["number", "null"]}
_IGNORED: dict[str, Any] = {"description": "Ignored"}
_MESSAGE = {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}, "required": ["role"]}

#: JSON types of the most common fields. OpenAI, vLLM and LoRAX document the others.
_TYPES: dict[str, dict[str, Any]] = {
    "prompt": {"type": ["string", "array"]},
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "stop": {"type": ["string", "array", "null"]},
    **dict.fromkeys(("model", "adapter_id", "user", "guided_regex"), _STRING),
    **dict.fromkeys(
        ("stream", "echo", "details", "do_sample", "return_full_text", "add_special_tokens", "return_token_strs"),
        _BOOLEAN,
    ),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "n", "seed", "top_k"), _COUNT
    ),
    "stop_sequences": {"type": ["array", "null"], "items": {"type": "string"}},
    "input": {"type": ["string", "array"]},
    "instructions": _STRING,
    "system": {"type": ["string", "array", "null"]},
    "tokens": {"type": "array", "items": {"type": "integer"}},
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), _NUMBER),
}


def _object(table: FieldTable) -> dict[str, Any]:
    properties = {name: _IGNORED if name in table.ignored else _TYPES.get(name, {}) for name in sorted(table.names)}
    required = [*table.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_PARAMETERS: dict[str, Any] = {**_object(LORAX), "type": ["object", "null"]}
_LORAX: dict[str, Any] = {
    "type": "object",
    "properties": {"inputs": {"type": "string", "minLength": 1}, "parameters": _PARAMETERS, "stream": _BOOLEAN},
    "required": ["inputs"],
    "additionalProperties": False,
}
_GENERATED: dict[str, Any] = {
    "type": "object",
    "properties": {"generated_text": {"type": "string"}, "details": {"type": "object"}},
    "required": ["generated_text"],
}
_CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}
_TOKEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "text": {"type": "string"},
        "logprob": _NUMBER,
        "special": {"type": "boolean"},
        "alternative_tokens": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["id", "text", "logprob", "special"],
}
_TOKEN_OR_ERROR: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"token": _TOKEN, "generated_text": _STRING, "details": {"type": ["object", "null"]}},
            "required": ["token", "generated_text", "details"],
        },
        {
            "type": "object",
            "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
            "required": ["error", "error_type"],
        },
    ]
}
_IGNORED_HEADER = {
    "description": "Names of request fields that were ignored because they cannot change the answer",
    "schema": {"type": "string"},
}
_LORAX_DATA = {"type": "string", "contentMediaType": "application/json", "contentSchema": _TOKEN_OR_ERROR}
_OPENAI_DATA = {"type": "string", "description": "Chunk or error as JSON; `[DONE]` at the end"}


def _documented(
    body: dict[str, Any], answer: dict[str, Any] | None, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build an ``openapi_extra`` fragment.

    Args:
        answer: schema of a whole answer; None if the route only streams.
        data: schema of an event's ``data``; None if the route never streams.
    """
    content: dict[str, Any] = {} if answer is None else {"application/json": {"schema": answer}}
    if data is not None:
        # OpenAPI 3.1 cannot describe an event stream: by convention the schema describes one event.
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    return {
        "parameters": [DEADLINE],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "Answer, whole or as events",
                "content": content,
                "headers": {IGNORED: _IGNORED_HEADER},
            }
        },
    }


def _answer(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of an answer of which the most important fields are described."""
    return {"type": "object", "properties": properties, "required": [*required, *properties]}


_TEXT: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_TOKENS: dict[str, Any] = {"type": "array", "items": _INTEGER}
_RESPONSE = _answer(
    "usage",
    "incomplete_details",
    id=_TEXT,
    object={"const": "response"},
    created_at=_INTEGER,
    status={"enum": ["completed", "incomplete"]},
    model=_TEXT,
    output=_OBJECTS,
    store={"const": False},
)
_MESSAGE_OUT = _answer(
    "stop_sequence",
    id=_TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_TEXT,
    content=_OBJECTS,
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    usage={"type": "object"},
)
_TOKENIZED = _answer(count=_INTEGER, max_model_len=_INTEGER, tokens=_TOKENS)
_EVENT_DATA = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "object"}}

COMPLETION = _documented(_object(field_table.COMPLETIONS), _CHOICES, _OPENAI_DATA)
CHAT = _documented(_object(field_table.CHAT), _CHOICES, _OPENAI_DATA)
RESPONSES = _documented(_object(field_table.RESPONSES), _RESPONSE, _EVENT_DATA)
MESSAGES = _documented(_object(field_table.MESSAGES), _MESSAGE_OUT, _EVENT_DATA)
COUNT_TOKENS = _documented(_object(field_table.COUNT_TOKENS), _answer(input_tokens=_INTEGER))
TOKENIZE = _documented(_object(field_table.TOKENIZE), _TOKENIZED)
DETOKENIZE = _documented(_object(field_table.DETOKENIZE), _answer(prompt=_TEXT))
GENERATE = _documented(_LORAX, _GENERATED)
GENERATE_STREAM = _documented(_LORAX, None, _LORAX_DATA)
COMPAT_GENERATE = _documented(_LORAX, {"type": "array", "items": _GENERATED}, _LORAX_DATA)
