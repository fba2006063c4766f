"""Field checks: each returns the value, or raises InvalidRequest with the field, its value and what is allowed."""

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.parsing import shown
from app.settings import LimitSettings

#: ``check(value, path, limits)`` returns the checked value. ``path`` names the value in errors.
Check = Callable[[Any, str, LimitSettings], Any]

_USER_CHARS = 512
_LOGIT_BIASES = 300
_STOP_TOKEN_IDS = 128
_METADATA, _METADATA_NAME_CHARS, _METADATA_CHARS = 16, 64, 512
MAX_TOKEN_ID = 2**31 - 1

#: OpenAI pads events with random text against observers of their lengths. The padding is no part of the answer.
IGNORED_STREAM_OPTIONS = frozenset({"include_obfuscation"})


def refuse(path: str, value: object, allowed: str) -> InvalidRequest:
    """Build the error for a value that is not allowed. ``allowed`` completes "it must be"."""
    return InvalidRequest(f"{path} is {shown(value)}; it must be {allowed}.", param=path)


def refuse_item(path: str, item: object, allowed: str) -> InvalidRequest:
    """Build the error for an item of an array that is not allowed. ``allowed`` completes "each item must be"."""
    return InvalidRequest(f"{path} contains {shown(item)}; each item must be {allowed}.", param=path)


def over_limit(path: str, count: int, unit: str, limit: int) -> InvalidRequest:
    """Build the error for a value with too many of something. ``unit`` is a plural, such as ``bytes``."""
    return InvalidRequest(f"{path} has {count} {unit}; the limit is {limit}.", param=path)


def integer(low: int, high: int) -> Check:
    """Check for an integer in ``low..high``. Booleans and floats are refused."""

    def check(value: Any, path: str, _: LimitSettings) -> int:
        if type(value) is not int or not low <= value <= high:
            raise refuse(path, value, f"an integer from {low} to {high}")
        return value

    return check


def integer_up_to(limit: str, low: int) -> Check:
    """Check for an integer from ``low`` to the cap named ``limit`` in the settings."""

    def check(value: Any, path: str, limits: LimitSettings) -> int:
        high: int = getattr(limits, limit)
        if type(value) is not int or not low <= value <= high:
            raise refuse(path, value, f"an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """Check for a finite number in ``low..high``. ``above`` excludes ``low`` itself."""
    words = f"a number above {low:g} and up to {high:g}" if above else f"a number from {low:g} to {high:g}"

    def check(value: Any, path: str, _: LimitSettings) -> float:
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            raise refuse(path, value, words)
        return float(value)

    return check


def anything(value: Any, _: str, __: LimitSettings) -> Any:
    """Accept any value, for fields that are ignored."""
    return value


def boolean(value: Any, path: str, _: LimitSettings) -> bool:
    if type(value) is not bool:
        raise refuse(path, value, "true or false")
    return value


def text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise refuse(path, value, "a string")
    return value


def one_of(*allowed: Any) -> Check:
    """Check for one of a few values, compared with their types (``1`` is not ``true``)."""
    words = " or ".join(json.dumps(value) if isinstance(value, list) else shown(value) for value in allowed)

    def check(value: Any, path: str, _: LimitSettings) -> Any:
        if not any(type(value) is type(other) and value == other for other in allowed):
            raise refuse(path, value, words)
        return value

    return check


def supported_only(*allowed: Any) -> Check:
    """Check for a value that requests the default behaviour; refuse any other value as unsupported."""
    check_value = one_of(*allowed)

    def check(value: Any, path: str, limits: LimitSettings) -> Any:
        try:
            return check_value(value, path, limits)
        except InvalidRequest as error:
            raise UnsupportedField(error.message, param=error.param) from None

    return check


def user(value: Any, path: str, _: LimitSettings) -> str:
    if len(text(value, path)) > _USER_CHARS:
        raise over_limit(path, len(value), "characters", _USER_CHARS)
    return str(value)


def stop(value: Any, path: str, limits: LimitSettings) -> list[str]:
    """Check stop strings: one string, or a list of them."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise refuse(path, value, "a string or an array of strings")
    if len(strings) > limits.stop:
        raise over_limit(path, len(strings), "strings", limits.stop)
    for item in strings:
        if not isinstance(item, str) or not 1 <= len(item.encode()) <= limits.stop_bytes:
            raise refuse_item(path, item, f"a string of 1 to {limits.stop_bytes} bytes")
    return strings


def stop_token_ids(value: Any, path: str, _: LimitSettings) -> list[int]:
    if not isinstance(value, list) or len(value) > _STOP_TOKEN_IDS:
        raise refuse(path, value, f"an array of at most {_STOP_TOKEN_IDS} token ids")
    return token_ids(value, path)


def logit_bias(value: Any, path: str, _: LimitSettings) -> dict[str, float]:
    """Check a map from token id, written as a string, to a bias from -100 to 100."""
    if not isinstance(value, dict):
        raise refuse(path, value, f"an object of at most {_LOGIT_BIASES} token ids with their bias")
    if len(value) > _LOGIT_BIASES:
        raise over_limit(path, len(value), "token ids", _LOGIT_BIASES)
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) <= MAX_TOKEN_ID):
            raise InvalidRequest(f"{path} has the key {shown(token)}; each key must be a token id.", param=path)
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise refuse(f"{path}.{token}", bias, "a number from -100 to 100")
    return value


def metadata(value: Any, path: str, _: LimitSettings) -> dict[str, str]:
    """Check OpenAI's metadata: a few names with texts."""
    if not isinstance(value, dict) or len(value) > _METADATA:
        raise refuse(path, value, f"an object of at most {_METADATA} names with texts")
    for name, item in value.items():
        if len(name) > _METADATA_NAME_CHARS:
            raise InvalidRequest(
                f"{path} has a name of {len(name)} characters; the limit is {_METADATA_NAME_CHARS}.", param=path
            )
        if not isinstance(item, str) or len(item) > _METADATA_CHARS:
            raise refuse(f"{path}.{name}", item, f"a string of at most {_METADATA_CHARS} characters")
    return value


def tokens(value: Any, path: str, _: LimitSettings) -> list[int]:
    """Check an array of token ids."""
    if not isinstance(value, list):
        raise refuse(path, value, "an array of token ids")
    return token_ids(value, path)


def token_ids(value: list[Any], path: str) -> list[int]:
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise refuse_item(path, item, f"a token id from 0 to {MAX_TOKEN_ID}")
    return value


def prompt(value: Any, path: str, limits: LimitSettings) -> Any:
    """Check a prompt of /v1/completions: a text, token ids, or up to ``limits.prompts`` of either kind."""
    if isinstance(value, str):
        if not value:
            raise refuse(path, value, "a text of at least one character")
        return value
    if not isinstance(value, list) or not value:
        raise refuse(path, value, "a string, token ids, or an array of either")
    if type(value[0]) is int:
        return token_ids(value, path)
    if len(value) > limits.prompts:
        raise over_limit(path, len(value), "prompts", limits.prompts)
    # Mixed lists are refused: vLLM infers the type of the whole list from its first item.
    kind = type(value[0])
    for index, item in enumerate(value):
        where = f"{path}.{index}"
        if type(item) is not kind or kind not in (str, list) or not item:
            raise refuse(where, item, "a non-empty string or array of token ids, of the same type as all other prompts")
        if kind is list:
            token_ids(item, where)
    return value


def stream_options(value: Any, path: str, limits: LimitSettings) -> dict[str, bool]:
    options = fields(value, path, {"include_usage", "continuous_usage_stats", *IGNORED_STREAM_OPTIONS})
    return {
        name: boolean(item, f"{path}.{name}", limits)
        for name, item in options.items()
        if name not in IGNORED_STREAM_OPTIONS
    }


def fields(value: Any, path: str, allowed: Collection[str], *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check an object against an allow-list of keys. Keys whose value is null count as not sent."""
    for name, item in value.items() if isinstance(value, dict) else ():
        if item is not None and name not in allowed:
            where = f"{path}.{name[:80]}"
            supported = ", ".join(sorted(allowed))
            raise UnsupportedField(f"{where} is not supported. The fields of {path} are: {supported}.", param=where)
    return known_fields(value, path, allowed, required=required)


def known_fields(value: Any, path: str, names: Collection[str], *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Select the keys of an object that have one of the names and are not null; ignore all others."""
    if not isinstance(value, dict):
        raise refuse(path, value, "an object")
    present = {name: item for name, item in value.items() if item is not None and name in names}
    for name in required:
        if name not in present:
            raise InvalidRequest(f"{path}.{name} is missing.", param=f"{path}.{name}")
    return present


def other_fields(value: dict[str, Any], path: str, names: Collection[str]) -> Iterator[str]:
    """Return the names of non-null keys that :func:`known_fields` ignores."""
    return (f"{path}.{name}" for name, item in value.items() if item is not None and name not in names)
