"""Chat messages: roles, text content and tool calls. The base reads text only.

Clients send back fields that other servers or their libraries added to an answer. Only the keys named here reach the
engine, for messages, content parts, tool calls and functions. Other keys are ignored, as in vLLM, and
:func:`ignored` reports them.
"""

import json
from collections.abc import Iterator
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.field_checks import known_fields, other_fields, over_limit, refuse, text
from app.services.bodies.parsing import Unusable, loads, shown
from app.settings import LimitSettings

# Caps on the work of the chat template, which the cap on the body's bytes alone does not limit.
_TURNS = 2048
_PARTS = 256
_TOOL_CALLS = 128
_NAME_CHARS = 256
# The engine parses arguments again, deeper in its stack than this process does.
_ARGUMENTS_DEPTH = 128
_NO_ARGUMENTS = "{}"

_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "name", "tool_call_id"},
}
_CALL_FIELDS = ("id", "type", "function")
_FUNCTION_FIELDS = ("name", "arguments")

#: Key that holds the text, by the type of a content part. The engine reads each of them as text.
_PART_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


def messages(value: Any, path: str, _: LimitSettings) -> list[dict[str, Any]]:
    """Check the messages of a chat request and return them as the engine takes them.

    ``developer`` becomes ``system``: it is OpenAI's newer name for the same role, and no Llama template knows it.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= _TURNS:
        raise refuse(path, value, f"an array of 1 to {_TURNS} messages")
    return [_message(item, f"{path}.{index}") for index, item in enumerate(value)]


def ignored(value: list[dict[str, Any]]) -> Iterator[str]:
    """Return the names of ignored keys in messages that passed :func:`messages`, some of them repeatedly."""
    for message in value:
        yield from other_fields(message, "messages[]", _FIELDS[message["role"]])
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            yield from other_fields(part, "messages[].content[]", ("type", _PART_TEXTS[part["type"]]))
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        for call in calls or ():
            yield from other_fields(call, "messages[].tool_calls[]", _CALL_FIELDS)
            yield from other_fields(call["function"], "messages[].tool_calls[].function", _FUNCTION_FIELDS)


def _message(value: Any, path: str) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _FIELDS:
        raise refuse(f"{path}.role", role, f"one of {', '.join(_FIELDS)}")
    if role == "developer" and value.get("tools"):
        # The engine would offer these tools to the model.
        message = f"{path}.tools is not supported. Send tools in the field tools of the request."
        raise UnsupportedField(message, param=f"{path}.tools")
    turn = known_fields(value, path, _FIELDS[role])
    for name in ("name", "tool_call_id"):
        if name in turn and len(text(turn[name], f"{path}.{name}")) > _NAME_CHARS:
            raise over_limit(f"{path}.{name}", len(turn[name]), "characters", _NAME_CHARS)
    if role == "tool" and "tool_call_id" not in turn:
        raise InvalidRequest(f"{path}.tool_call_id is missing.", param=f"{path}.tool_call_id")
    if calls := _tool_calls(turn.pop("tool_calls", []), f"{path}.tool_calls"):
        turn["tool_calls"] = calls
    if "content" not in turn and role != "assistant":
        raise InvalidRequest(f"{path}.content is missing.", param=f"{path}.content")
    content = _content(turn.pop("content", ""), f"{path}.content")
    if content or not calls:
        turn["content"] = content
    if role == "developer":
        turn["role"] = "system"
    return turn


def _content(value: Any, path: str) -> str | list[dict[str, str]]:
    """Check a text or a list of text parts. An empty list becomes the empty text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > _PARTS:
        raise refuse(path, value, f"a string or an array of at most {_PARTS} text parts")
    return [_part(item, f"{path}.{index}") for index, item in enumerate(value)] or ""


def _part(value: Any, path: str) -> dict[str, str]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _PART_TEXTS:
        raise UnsupportedField(f"{path}.type is {shown(kind)}; it must be 'text'.", param=f"{path}.type")
    name = _PART_TEXTS[kind]
    return {"type": "text", "text": text(value.get(name), f"{path}.{name}")}


def _tool_calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > _TOOL_CALLS:
        raise refuse(path, value, f"an array of at most {_TOOL_CALLS} tool calls")
    return [_tool_call(item, f"{path}.{index}") for index, item in enumerate(value)]


def _tool_call(value: Any, path: str) -> dict[str, Any]:
    call = known_fields(value, path, _CALL_FIELDS, required=_CALL_FIELDS)
    if call["type"] != "function":
        raise UnsupportedField(f"{path}.type is {shown(call['type'])}; it must be 'function'.", param=f"{path}.type")
    where = f"{path}.function"
    function = known_fields(call["function"], where, _FUNCTION_FIELDS, required=_FUNCTION_FIELDS)
    return {
        "id": text(call["id"], f"{path}.id"),
        "type": "function",
        "function": {
            "name": text(function["name"], f"{where}.name"),
            "arguments": _arguments(text(function["arguments"], f"{where}.arguments"), f"{where}.arguments"),
        },
    }


def _arguments(value: str, path: str) -> str:
    """Check that a text holds a JSON object. Text that is blank, truncated or no object becomes ``{}``.

    Models generate such texts, for example in a call that was cut off at ``max_tokens``. The call stays part of the
    conversation, which could not continue if it were refused. vLLM reads such texts the same way.
    """
    try:
        parsed = loads(value)
    except Unusable as error:
        raise InvalidRequest(f"{path} {error}.", param=path) from None
    except json.JSONDecodeError:
        return _NO_ARGUMENTS
    except (ValueError, RecursionError):
        message = f"{path} has a number that is too long, or is nested too deeply. Send a JSON object as a string."
        raise InvalidRequest(message, param=path) from None
    if not isinstance(parsed, dict):
        return _NO_ARGUMENTS
    check_arguments(parsed, path)
    return value


def check_arguments(parsed: dict[str, Any], path: str) -> None:
    """Refuse arguments nested too deeply for a prompt. Iterative, because the depth is not trusted."""
    level: list[Any] = [parsed]
    for _ in range(_ARGUMENTS_DEPTH):
        level = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            break
    else:
        raise InvalidRequest(f"{path} is nested too deeply; the limit is {_ARGUMENTS_DEPTH} levels.", param=path)
