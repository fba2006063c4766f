"""Strict JSON parser for untrusted input: bounded in size and depth, and unambiguous.

Python's parser takes the last of duplicate keys, accepts ``NaN`` and ``Infinity``, and turns ``1e999`` into infinity.
Another parser may read other values from the same bytes. Ambiguous input is refused here.
"""

import json
import math
import re
import reprlib
from typing import Any

MAX_DEPTH = 8

#: Lists and objects in one text. A safetensors header of 20,000 entries needs three for each.
MAX_CONTAINERS = 2**16

# Well above any size in a file, and far below the length where digit conversion gets slow.
_MAX_DIGITS = 20

_SHOWN_CHARACTERS = 80

# The closing quote is optional to keep the scan linear. Otherwise each escaped quote in an unterminated string would
# start a scan to its end.
_BRACKETS = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]|\\.)*+"?', re.DOTALL)

# Escaped NUL whose backslash is not escaped itself.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse UTF-8 bytes that must hold one JSON object.

    The caller bounds the size of ``raw``. The parser refuses:

    - Bytes that are not UTF-8, not JSON, or not an object.
    - Nesting deeper than :data:`MAX_DEPTH`, or more lists and objects than :data:`MAX_CONTAINERS`.
    - Duplicate keys, NaN, infinities, and numbers with too many digits.
    - Text that UTF-8 cannot hold (half a surrogate pair) or PostgreSQL cannot (NUL).

    Raises:
        ValueError: the input is refused.
    """
    text = raw.decode("utf-8")
    _check_nesting(text)
    if _NUL.search(text):
        raise ValueError("a NUL character")
    value = json.loads(
        text,
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_float,
        parse_constant=_refuse_constant,
    )
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for all malformed input
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def show(value: object) -> str:
    """Format a parsed value for display: short, on one line, without control characters."""
    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = _SHOWN_CHARACTERS
    return shortened.repr(value)[:_SHOWN_CHARACTERS]


def show_name(text: str) -> str:
    """Return a parsed string unchanged if it is short and printable, else formatted by :func:`show`."""
    return text if text.isprintable() and len(text) <= _SHOWN_CHARACTERS else show(text)


def _check_nesting(text: str) -> None:
    depth = opened = 0
    for token in _BRACKETS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth, opened = depth + 1, opened + 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            if opened > MAX_CONTAINERS:
                raise ValueError(f"more than {MAX_CONTAINERS} lists and objects")
        elif first in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key[:80]!a} occurs twice")
        members[key] = value
    return members


def _integer(digits: str) -> int | float:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of more than {_MAX_DIGITS} digits")
    # Rust's serde, which the safetensors library uses, parses -0 as a float. This parser must agree with it.
    return -0.0 if digits == "-0" else int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number too large for a double")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which JSON does not have")
