"""Request bodies of OpenAI's completions and chats, checked against :mod:`app.services.bodies.field_table`.

The fields are OpenAI's, and those of vLLM's ``CompletionRequest`` and ``ChatCompletionRequest`` that are a client's
to choose. A field whose value is null counts as not sent. A field that cannot change the answer is ignored and
reported by :func:`ignored`. Any other field is refused by name.
"""

from collections.abc import Iterator
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_checks, structured
from app.services.bodies.field_table import CHAT, COMPLETIONS
from app.services.bodies.messages import ignored as ignored_of_messages
from app.services.bodies.parsing import shown
from app.settings import LimitSettings

# Checked, but not needed by the engine.
_NOT_FORWARDED = (*CHAT.ignored, "user", "best_of", "modalities", "verbosity", "functions", "function_call")


def completion_body(body: dict[str, Any], limits: LimitSettings) -> dict[str, Any]:
    """Check a body of ``/v1/completions``.

    Returns:
        The fields to forward, without ``model`` and ``adapter_id``.

    Raises:
        InvalidRequest, UnsupportedField
    """
    checked = COMPLETIONS.checked(body, limits)
    n = checked.get("n", 1)
    if checked.get("best_of", n) != n:
        message = f"best_of is {checked['best_of']}; it must have the same value as n, which is {n}."
        raise UnsupportedField(message, param="best_of")
    if checked.get("max_tokens") == 0 and not checked.get("echo"):
        raise InvalidRequest("max_tokens is 0; it must be at least 1 unless echo is true.", param="max_tokens")
    return _finish(checked)


def chat_body(body: dict[str, Any], limits: LimitSettings) -> dict[str, Any]:
    """Check a body of ``/v1/chat/completions``.

    Returns:
        The fields to forward, without ``model`` and ``adapter_id``.

    Raises:
        InvalidRequest, UnsupportedField
    """
    checked = CHAT.checked(body, limits)
    if checked.get("top_logprobs") and not checked.get("logprobs"):
        raise InvalidRequest("top_logprobs is allowed only if logprobs is true.", param="top_logprobs")
    _choose_tools(checked)
    return _finish(checked)


def ignored(body: dict[str, Any]) -> Iterator[str]:
    """Return the names of ignored fields in a body that passed its check, some of them repeatedly.

    A key inside a list is named once for all items, as ``messages[].parsed``.
    """
    idle = {*CHAT.ignored, *_idle_tool_fields(body)}
    yield from (name for name, value in body.items() if name in idle and value is not None)
    yield from ignored_of_messages(body.get("messages") or [])
    yield from structured.ignored_of_tools(body.get("tools") or [])
    options = body.get("stream_options") or {}
    yield from (
        f"stream_options.{name}" for name in field_checks.IGNORED_STREAM_OPTIONS if options.get(name) is not None
    )


def _finish(checked: dict[str, Any]) -> dict[str, Any]:
    if "stream_options" in checked and not checked.get("stream"):
        raise InvalidRequest("stream_options is allowed only if stream is true.", param="stream_options")
    structured.merge_guided(checked)
    for name in _NOT_FORWARDED:
        checked.pop(name, None)
    return checked


def _choose_tools(checked: dict[str, Any]) -> None:
    """Check the choice among tools, and drop fields that mean nothing to the engine."""
    for name in _idle_tool_fields(checked):
        checked.pop(name, None)
    if not checked.get("tools"):
        # An empty list counts as not sent.
        checked.pop("tools", None)
        if "tool_choice" in checked:
            raise InvalidRequest("tool_choice is allowed only together with tools.", param="tool_choice")
    elif isinstance(choice := checked.get("tool_choice"), dict):
        name = choice["function"]["name"]
        if all(tool["function"]["name"] != name for tool in checked["tools"]):
            message = f"tool_choice names the function {shown(name)}, which is not in tools."
            raise InvalidRequest(message, param="tool_choice")


def _idle_tool_fields(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the tool fields that request the default behaviour."""
    if body.get("tools"):
        return ("parallel_tool_calls",) if body.get("parallel_tool_calls") else ()
    free = body.get("tool_choice") in ("none", "auto")
    return ("parallel_tool_calls", "tool_choice") if free else ("parallel_tool_calls",)
