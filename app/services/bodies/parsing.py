"""From the bytes of a request to a JSON object."""

import json
import math
from typing import Any

from app.domain.errors import InvalidRequest

#: A body up to this size is parsed where it is; a larger one would keep the event loop from other requests.
SMALL_BYTES = 64 * 1024

#: Of a larger body: arrays and objects, names in objects, and values in arrays and objects. A parser holds the
#: interpreter's lock, so its time has to be bounded by what it makes, not only by what it reads.
MAX_CONTAINERS = 2**16
MAX_NAMES = 2**16
MAX_VALUES = 2**18

# Some clients put a byte order mark before the text.
_BOM = b"\xef\xbb\xbf"


class Unusable(ValueError):
    """JSON with a number that is not finite, with text that is not Unicode, or with too much in it."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object, with or without a byte order mark.

    Raises:
        InvalidRequest: not UTF-8, not JSON (``NaN`` and ``Infinity`` are not), nested too deeply, not an
            object, or text with an unpaired surrogate.
    """
    try:
        body = loads(raw.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"body: found bytes that are not UTF-8 at offset {error.start}, allowed JSON") from None
    except Unusable as error:
        raise InvalidRequest(f"body: {error}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"body: not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InvalidRequest("body: JSON nested too deeply") from None
    except ValueError as error:
        # An integer beyond the interpreter's digit limit.
        raise InvalidRequest(f"body: not JSON: {str(error)[:80]}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"body: found {type_name(body)}, allowed an object")
    return body


def parse_large_object(raw: bytes) -> dict[str, Any]:
    """As :func:`parse_object`, of bytes beyond :data:`SMALL_BYTES`: for a thread.

    Raises:
        InvalidRequest: as there, or more in it than the bounds above.
    """
    try:
        check_amount(raw)
    except Unusable as error:
        raise InvalidRequest(f"body: {error}", param="body") from None
    return parse_object(raw)


def check_amount(raw: bytes) -> None:
    """Count what JSON holds, without parsing it.

    Raises:
        Unusable: more arrays and objects, names or values than the bounds above.
    """
    # Without escapes, every quote begins or ends a string, and every other piece is outside of them. The first byte
    # that no JSON parser passes ends the parsing, so what the pieces after it are is no matter.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _bounded("strings", plain.count(b'"') // 2, MAX_NAMES + MAX_VALUES)
    outside = b"".join(plain.split(b'"')[::2])
    _bounded("arrays and objects", outside.count(b"[") + outside.count(b"{"), MAX_CONTAINERS)
    _bounded("names", outside.count(b":"), MAX_NAMES)
    _bounded("values", outside.count(b","), MAX_VALUES)


def loads(text: str) -> Any:
    """Parse JSON of a client's, be it a body or a text within one.

    Raises:
        Unusable: a number that is not finite, or text with an unpaired surrogate.
        ValueError: not JSON.
        RecursionError: nested too deeply.
    """
    found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(found)
    return found


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


def _bounded(what: str, found: int, allowed: int) -> None:
    if found > allowed:
        raise Unusable(f"found {found} {what}, allowed {allowed}")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Unusable(f"found {digits[:40]}, allowed finite numbers")
    return value


def _refuse_constant(name: str) -> None:
    raise Unusable(f"found {name}, allowed finite numbers")


def _refuse_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable("found an unpaired surrogate escape, allowed Unicode text") from None
