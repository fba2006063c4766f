"""Request bodies of OpenAI's two inference routes: an allow-list with a check for each field.

The fields are OpenAI's, and those of vLLM's ``CompletionRequest`` and ``ChatCompletionRequest`` that are a client's
to choose. A field whose value is null counts as not sent. A field that cannot change the answer is ignored and
reported by :func:`ignored`. Any other field is refused by name.
"""

from collections.abc import Iterator
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_checks, structured
from app.services.bodies.field_checks import Check, boolean, integer, integer_up_to, number, one_of, supported_only
from app.services.bodies.messages import ignored as ignored_of_messages
from app.services.bodies.messages import messages
from app.services.bodies.parsing import shown
from app.settings import LimitSettings

MAX_TOKENS = 2**31 - 1

#: Fields that name the model. The inference service reads them.
MODEL_FIELDS = frozenset({"model", "adapter_id"})

#: OpenAI's fields about its platform, its caches and reasoning effort. None changes this base's answers, so none is
#: checked or forwarded. ``user`` is not among them: it selects the version where an alias splits its traffic.
IGNORED = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
    }
)

_SAMPLING: dict[str, Check] = dict.fromkeys(IGNORED, field_checks.anything) | {
    "temperature": number(0, 2),
    "top_p": number(0, 1, above=True),
    "top_k": integer(-1, MAX_TOKENS),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    # Logits are divided by the penalty. Values closer to zero make them infinite.
    "repetition_penalty": number(0.01, 100),
    "stop": field_checks.stop,
    "stop_token_ids": field_checks.stop_token_ids,
    "seed": integer(-(2**63), 2**63 - 1),
    "n": integer_up_to("n", 1),
    "min_tokens": integer(0, MAX_TOKENS),
    "ignore_eos": boolean,
    "logit_bias": field_checks.logit_bias,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "include_stop_str_in_output": boolean,
    "return_token_ids": boolean,
    "stream": boolean,
    "stream_options": field_checks.stream_options,
    "user": field_checks.user,
    "response_format": structured.response_format,
    "structured_outputs": structured.structured_outputs,
    "guided_json": structured.json_constraint,
    "guided_regex": structured.regex,
    "guided_choice": structured.choice,
}

COMPLETION_FIELDS: dict[str, Check] = _SAMPLING | {
    "prompt": field_checks.prompt,
    "max_tokens": integer(0, MAX_TOKENS),
    "logprobs": integer_up_to("logprobs", 0),
    "echo": boolean,
    "best_of": integer_up_to("n", 1),
}

CHAT_FIELDS: dict[str, Check] = _SAMPLING | {
    "messages": messages,
    "max_tokens": integer(1, MAX_TOKENS),
    "max_completion_tokens": integer(1, MAX_TOKENS),
    "logprobs": boolean,
    "top_logprobs": integer_up_to("logprobs", 0),
    "tools": structured.tools,
    "tool_choice": structured.tool_choice,
    "parallel_tool_calls": boolean,
    # Only values that request the default behaviour are accepted.
    "modalities": one_of(["text"]),
    "verbosity": supported_only("medium"),
    "functions": supported_only([]),
    "function_call": supported_only("none", "auto"),
}

# Checked, but not needed by the engine.
_NOT_FORWARDED = (*IGNORED, "user", "best_of", "modalities", "verbosity", "functions", "function_call")


def completion_body(body: dict[str, Any], limits: LimitSettings) -> dict[str, Any]:
    """Check a body of ``/v1/completions``.

    Returns:
        The fields to forward, without ``model`` and ``adapter_id``.

    Raises:
        InvalidRequest, UnsupportedField
    """
    checked = _checked(body, COMPLETION_FIELDS, limits)
    if "prompt" not in checked:
        raise InvalidRequest("prompt is missing.", param="prompt")
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
    checked = _checked(body, CHAT_FIELDS, limits)
    if "messages" not in checked:
        raise InvalidRequest("messages is missing.", param="messages")
    if checked.get("top_logprobs") and not checked.get("logprobs"):
        raise InvalidRequest("top_logprobs is allowed only if logprobs is true.", param="top_logprobs")
    _choose_tools(checked)
    return _finish(checked)


def ignored(body: dict[str, Any]) -> Iterator[str]:
    """Return the names of ignored fields in a body that passed its check, some of them repeatedly.

    A key inside a list is named once for all items, as ``messages[].parsed``.
    """
    idle = {*IGNORED, *_idle_tool_fields(body)}
    yield from (name for name, value in body.items() if name in idle and value is not None)
    yield from ignored_of_messages(body.get("messages") or [])
    yield from structured.ignored_of_tools(body.get("tools") or [])
    options = body.get("stream_options") or {}
    yield from (
        f"stream_options.{name}" for name in field_checks.IGNORED_STREAM_OPTIONS if options.get(name) is not None
    )


def _checked(body: dict[str, Any], table: dict[str, Check], limits: LimitSettings) -> dict[str, Any]:
    checked = {}
    for name, value in body.items():
        if value is None or name in MODEL_FIELDS:
            continue
        check = table.get(name)
        if check is None:
            raise UnsupportedField(f"The field {name[:80]} is not supported.", param=name[:80])
        checked[name] = check(value, name, limits)
    return checked


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
