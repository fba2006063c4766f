"""OpenAPI fragments of the inference routes, generated from the parsers' allow-lists."""

from collections.abc import Iterable
from typing import Any

from app.api.inference_headers import DEADLINE, IGNORED
from app.services.bodies.lorax import IGNORED as IGNORED_PARAMETERS
from app.services.bodies.lorax import PARAMETERS
from app.services.bodies.openai import CHAT_FIELDS, COMPLETION_FIELDS, MODEL_FIELDS
from app.services.bodies.openai import IGNORED as IGNORED_FIELDS

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
    **dict.fromkeys(("stream", "echo", "details", "do_sample", "return_full_text"), _BOOLEAN),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens", "n", "seed", "top_k"), _COUNT),
    **dict.fromkeys((*IGNORED_FIELDS, *IGNORED_PARAMETERS), _IGNORED),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), _NUMBER),
}


def _object(names: Iterable[str], *required: str) -> dict[str, Any]:
    properties = {name: _TYPES.get(name, {}) for name in sorted(names)}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_PARAMETERS: dict[str, Any] = {**_object(PARAMETERS), "type": ["object", "null"]}
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


COMPLETION = _documented(_object({*COMPLETION_FIELDS, *MODEL_FIELDS}, "prompt"), _CHOICES, _OPENAI_DATA)
CHAT = _documented(_object({*CHAT_FIELDS, *MODEL_FIELDS}, "messages"), _CHOICES, _OPENAI_DATA)
GENERATE = _documented(_LORAX, _GENERATED)
GENERATE_STREAM = _documented(_LORAX, None, _LORAX_DATA)
COMPAT_GENERATE = _documented(_LORAX, {"type": "array", "items": _GENERATED}, _LORAX_DATA)
