"""JSON parsing of request bodies, with bounds on their content."""

import json
import math
import sys
from typing import Any

from app.domain.errors import InvalidRequest

#: Bytes. A body up to this size is parsed in the event loop; a larger one would block other requests.
SMALL_BYTES = 64 * 1024

#: Caps for a larger body: arrays and objects, names in objects, and values in arrays and objects. A parser holds the
#: GIL, so its time must be bounded by the objects it creates, not only by the bytes it reads.
#: See docs/decisions/0025-parse-large-bodies-in-turn.md.
MAX_CONTAINERS = 2**16
MAX_NAMES = 2**16
MAX_VALUES = 2**18

# Some clients send a byte order mark in front of the text.
_BOM = b"\xef\xbb\xbf"


class Unusable(ValueError):
    """JSON with a number that is not finite, text that is not Unicode, or too many items.

    The message is a predicate without a full stop, to follow the name of the text: "has 70000 names; the limit is ...".
    """


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object, with or without a byte order mark.

    Raises:
        InvalidRequest: the body is not UTF-8, not a JSON object, nested too deeply, or has text with an unpaired
            surrogate. ``NaN`` and ``Infinity`` are not JSON.
    """
    try:
        body = loads(raw.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 at byte {error.start}. Send JSON in UTF-8.") from None
    except Unusable as error:
        raise InvalidRequest(f"The body {error}.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except ValueError:
        # An integer beyond the interpreter's digit limit.
        most = sys.get_int_max_str_digits()
        raise InvalidRequest(f"The body has an integer with too many digits; the limit is {most}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"The body is {type_name(body)}; it must be a JSON object.")
    return body


def parse_large_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object of more than :data:`SMALL_BYTES`. Run it in a thread.

    Raises:
        InvalidRequest: as in :func:`parse_object`, or the body exceeds a cap.
    """
    try:
        check_amount(raw)
    except Unusable as error:
        raise InvalidRequest(f"The body {error}.", param="body") from None
    return parse_object(raw)


def check_amount(raw: bytes) -> None:
    """Count the items in JSON text without parsing it.

    Raises:
        Unusable: the number of arrays and objects, names or values exceeds its cap.
    """
    # Without escapes, every quote begins or ends a string, so every other piece lies outside of strings. A parser
    # stops at the first invalid byte, so the pieces after that byte do not matter.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _bounded("strings", plain.count(b'"') // 2, MAX_NAMES + MAX_VALUES)
    outside = b"".join(plain.split(b'"')[::2])
    _bounded("arrays and objects", outside.count(b"[") + outside.count(b"{"), MAX_CONTAINERS)
    _bounded("names", outside.count(b":"), MAX_NAMES)
    _bounded("values", outside.count(b","), MAX_VALUES)


def loads(text: str) -> Any:
    """Parse JSON from a client: a body, or a text inside a body.

    Raises:
        Unusable: a number is not finite, or text has an unpaired surrogate.
        ValueError: the text is not JSON.
        RecursionError: the text is nested too deeply.
    """
    value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def type_name(value: object) -> str:
    """Return JSON's name for the type of a parsed value."""
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def shown(value: object) -> str:
    """Format a value for an error message: short, and never a whole prompt."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)[:40]
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "...")
    if isinstance(value, list):
        return f"an array of {len(value)} {'item' if len(value) == 1 else 'items'}" if value else "an empty array"
    return type_name(value)


def _bounded(unit: str, count: int, limit: int) -> None:
    if count > limit:
        raise Unusable(f"has {count} {unit}; the limit is {limit}")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Unusable(f"contains the number {digits[:40]}, which is beyond the range of a double")
    return value


def _refuse_constant(name: str) -> None:
    raise Unusable(f"contains {name}; numbers must be finite")


def _refuse_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable("contains an unpaired surrogate escape; texts must be Unicode") from None
