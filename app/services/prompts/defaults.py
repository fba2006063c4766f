"""Adapter defaults: values that a version supplies for fields that its requests omit. Pure.

A default is validated once, when it is written, with the checks of the request's own field. Defaults are merged into
a body only after the body has passed its checks. An error therefore always refers to what the caller sent.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from app.domain.errors import Forbidden, InvalidRequest
from app.engine.port import Endpoint
from app.services.bodies import lorax
from app.services.bodies.field_checks import Check, fields, one_of, refuse, text
from app.services.bodies.field_table import CHAT
from app.services.prompts.formats import FORMATS
from app.settings import LimitSettings

_PATH = "defaults"

#: Defaults that both OpenAI routes accept under the same name.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "stop",
)

# Default -> LoRAX parameter. temperature, top_k and min_p have separate rules.
_LORAX = {
    "max_tokens": "max_new_tokens",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


def checked_defaults(raw: object, *, limits: LimitSettings, admin: bool) -> dict[str, Any]:
    """Validate an object of defaults. Fields that are null count as absent.

    Only the size of a chat template is checked here. :meth:`app.services.prompts.chat.ChatPrompts.check` renders it.

    Raises:
        Forbidden: a chat template, and the caller is not an administrator.
        InvalidRequest, UnsupportedField
    """
    defaults = fields(raw, _PATH, _CHECKS)
    if "chat_template" in defaults and not admin:
        raise Forbidden(f"Only a platform key may set {_PATH}.chat_template.", param=f"{_PATH}.chat_template")
    if "chat_template" in defaults and "prompt_format" in defaults:
        raise _both(f"{_PATH}.prompt_format")
    return {name: _CHECKS[name](value, f"{_PATH}.{name}", limits) for name, value in defaults.items()}


def replaced_defaults(old: Mapping[str, Any], new: Mapping[str, Any], *, admin: bool) -> dict[str, Any]:
    """Replace a version's defaults with validated new ones.

    Only an administrator may change or remove a chat template. An update by a tenant keeps the old one.

    Raises:
        InvalidRequest: a prompt format together with a chat template that stays.
    """
    if admin:
        return dict(new)
    template = {"chat_template": old["chat_template"]} if "chat_template" in old else {}
    if template and "prompt_format" in new:
        raise _both(f"{_PATH}.prompt_format")
    return {name: value for name, value in new.items() if name != "chat_template"} | template


def apply_defaults(
    endpoint: Endpoint, body: dict[str, Any], defaults: Mapping[str, Any], *, longest: int
) -> dict[str, Any]:
    """Fill the omitted fields of a checked body of an OpenAI route with defaults.

    Args:
        longest: the engine's context length in tokens, a cap for ``max_tokens``.
    """
    filled = {name: defaults[name] for name in SAMPLING if name in defaults and name not in body}
    if "max_completion_tokens" in body:
        filled.pop("max_tokens", None)
    if "max_tokens" in filled:
        filled["max_tokens"] = max(min(filled["max_tokens"], longest), body.get("min_tokens", 0))
    if filled.get("temperature") == 0 and body.get("n", 1) > 1:
        del filled["temperature"]  # several answers need sampling
    if endpoint is Endpoint.CHAT and "system_prompt" in defaults and not _has_system_turn(body):
        turn = {"role": "system", "content": defaults["system_prompt"]}
        filled["messages"] = [turn, *body["messages"]]
    return body | filled


def lorax_generation(
    body: dict[str, Any],
    defaults: Mapping[str, Any],
    limits: LimitSettings,
    *,
    default_tokens: int,
    stream: bool | None,
    longest: int,
) -> lorax.Generation:
    """Build the generation of a checked LoRAX body with defaults, see :func:`app.services.bodies.lorax.generation`.

    LoRAX's client sends ``do_sample: false`` and ``stop: []`` with every request. As in LoRAX itself, these two values
    count as absent. A request for greedy decoding is ``temperature: 0``.
    """
    sent = {name: value for name, value in (body.get("parameters") or {}).items() if value is not None}
    filled = {lorax_name: defaults[name] for name, lorax_name in _LORAX.items() if name in defaults}
    filled = {lorax_name: value for lorax_name, value in filled.items() if lorax_name not in sent}
    if "max_new_tokens" in filled:
        filled["max_new_tokens"] = min(filled["max_new_tokens"], longest)
    if "stop" in defaults and not sent.get("stop"):
        filled["stop"] = defaults["stop"]
    if defaults.get("top_k", 0) > 0 and "top_k" not in sent:
        filled["top_k"] = defaults["top_k"]
    filled |= _lorax_temperature(sent, defaults)
    generation = lorax.generation(
        body | {"parameters": sent | filled}, limits, default_tokens=default_tokens, stream=stream
    )
    if "min_p" not in defaults or generation.body["temperature"] == 0:
        return generation
    return dataclasses.replace(generation, body=generation.body | {"min_p": defaults["min_p"]})


def _lorax_temperature(sent: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the default temperature.

    In LoRAX ``temperature: 1`` alone does not enable sampling, but as a default it does.
    """
    temperature = defaults.get("temperature")
    if temperature is None or "temperature" in sent:
        return {}
    if temperature > 0:
        return {"temperature": temperature, "do_sample": True}
    asks_for_sampling = (
        sent.get("do_sample") or "top_k" in sent or sent.get("top_p", 1) < 1 or sent.get("best_of", 1) > 1
    )
    return {} if asks_for_sampling else {"temperature": 0.0}


def _both(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path} cannot be combined with chat_template.", param=path)


def _has_system_turn(body: Mapping[str, Any]) -> bool:
    return any(message["role"] == "system" for message in body["messages"])


def _sized(value: Any, path: str, most: int) -> str:
    try:
        size = len(text(value, path).encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path} has an unpaired surrogate; it must be Unicode text.", param=path) from None
    if not 1 <= size <= most:
        raise InvalidRequest(f"{path} has {size} bytes; it must have 1 to {most}.", param=path)
    return str(value)


def _system_prompt(value: Any, path: str, limits: LimitSettings) -> str:
    return _sized(value, path, limits.system_prompt_bytes)


def _chat_template(value: Any, path: str, limits: LimitSettings) -> str:
    return _sized(value, path, limits.chat_template_bytes)


def _stop(value: Any, path: str, limits: LimitSettings) -> list[str]:
    strings: list[str] = CHAT.checks["stop"](value, path, limits)
    if not strings:
        raise refuse(path, value, "a string, or an array of at least one string")
    return strings


_CHECKS: dict[str, Check] = {
    "system_prompt": _system_prompt,
    **{name: CHAT.checks[name] for name in SAMPLING},
    "stop": _stop,
    "prompt_format": one_of(*FORMATS),
    "chat_template": _chat_template,
}
