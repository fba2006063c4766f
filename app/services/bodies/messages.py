"""The turns of a chat: roles, text content and tool calls; the base reads text only."""

from typing import Any

from app.errors import InvalidRequest, UnsupportedField
from app.services.bodies.checks import fields, refuse, text
from app.services.bodies.parsing import Unusable, loads, shown
from app.settings import LimitSettings

# Bounds the work of the chat template, which the cap on the body's bytes alone does not.
_TURNS = 2048
_PARTS = 256
_TOOL_CALLS = 128
_NAME_CHARS = 256

_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def messages(value: Any, path: str, _: LimitSettings) -> list[dict[str, Any]]:
    """The messages of a chat request, as the engine takes them.

    ``developer`` becomes ``system``: OpenAI's newer name for the same turn, which no Llama template knows.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= _TURNS:
        raise refuse(path, value, f"an array of 1 to {_TURNS} messages")
    return [_message(item, f"{path}.{index}") for index, item in enumerate(value)]


def _message(value: Any, path: str) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _FIELDS:
        raise refuse(f"{path}.role", role, f"one of {', '.join(_FIELDS)}")
    turn = fields(value, path, _FIELDS[role])
    for name in ("name", "tool_call_id"):
        if name in turn and len(text(turn[name], f"{path}.{name}")) > _NAME_CHARS:
            raise refuse(f"{path}.{name}", turn[name], f"at most {_NAME_CHARS} characters")
    if role == "tool" and "tool_call_id" not in turn:
        raise InvalidRequest(f"{path}.tool_call_id: missing", param=f"{path}.tool_call_id")
    if "tool_calls" in turn:
        turn["tool_calls"] = _tool_calls(turn["tool_calls"], f"{path}.tool_calls")
    if "content" in turn:
        turn["content"] = _content(turn["content"], f"{path}.content")
    elif not turn.get("tool_calls"):
        raise InvalidRequest(f"{path}.content: missing", param=f"{path}.content")
    if role == "developer":
        turn["role"] = "system"
    return turn


def _content(value: Any, path: str) -> Any:
    """A text, or a list of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not 1 <= len(value) <= _PARTS:
        raise refuse(path, value, f"a string or an array of 1 to {_PARTS} text parts")
    for index, part in enumerate(value):
        where = f"{path}.{index}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise UnsupportedField(f"{where}.type: found {shown(kind)}, allowed 'text'", param=f"{where}.type")
        text(fields(part, where, {"type", "text"}, required=("text",))["text"], f"{where}.text")
    return value


def _tool_calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > _TOOL_CALLS:
        raise refuse(path, value, f"an array of at most {_TOOL_CALLS} tool calls")
    return [_tool_call(item, f"{path}.{index}") for index, item in enumerate(value)]


def _tool_call(value: Any, path: str) -> dict[str, Any]:
    call = fields(value, path, {"id", "type", "function"}, required=("id", "type", "function"))
    if call["type"] != "function":
        raise UnsupportedField(f"{path}.type: found {shown(call['type'])}, allowed 'function'", param=f"{path}.type")
    text(call["id"], f"{path}.id")
    function = fields(call["function"], f"{path}.function", {"name", "arguments"}, required=("name", "arguments"))
    text(function["name"], f"{path}.function.name")
    _arguments(text(function["arguments"], f"{path}.function.arguments"), f"{path}.function.arguments")
    return {"id": call["id"], "type": "function", "function": function}


def _arguments(value: str, path: str) -> None:
    """vLLM reads a malformed text as no arguments at all, without a word."""
    try:
        parsed = loads(value)
    except Unusable as error:
        raise InvalidRequest(f"{path}: {error}", param=path) from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"{path}: allowed a JSON object as a string", param=path)
