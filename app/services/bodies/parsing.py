"""From the bytes of a request to a JSON object."""

import json
from typing import Any

from app.errors import InvalidRequest


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        InvalidRequest: not UTF-8, not JSON (``NaN`` and ``Infinity`` are not), nested too deeply, not an
            object, or text with an unpaired surrogate.
    """
    try:
        text = raw.decode()
        body = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"body: found bytes that are not UTF-8 at offset {error.start}, allowed JSON") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"body: not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InvalidRequest("body: JSON nested too deeply") from None
    except ValueError as error:
        # An integer beyond the interpreter's digit limit.
        raise InvalidRequest(f"body: not JSON: {str(error)[:80]}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"body: found {type_name(body)}, allowed an object")
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(body)
    return body


def type_name(value: object) -> str:
    """JSON's own name for the type of a parsed value."""
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def shown(value: object) -> str:
    """A value as an error message may repeat it: short, and never a whole prompt."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)[:40]
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    return type_name(value)


def _refuse_constant(name: str) -> None:
    raise InvalidRequest(f"body: found {name}, allowed finite numbers")


def _refuse_surrogates(body: dict[str, Any]) -> None:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("body: found an unpaired surrogate escape, allowed Unicode text") from None
