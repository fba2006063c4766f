"""Cells of tables: values as text, short for people at a terminal, whole for programs and ``-o wide``."""

import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Optional

from rich.filesize import decimal

# Control, format (bidirectional overrides among them), surrogate, and line and paragraph separator characters.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_DIGEST = re.compile(r"sha256:([0-9a-f]{12})[0-9a-f]{52}", re.ASCII)
_SIZES = ("size_bytes", "bytes")
_AGES = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def clean(value: object) -> str:
    """Return the value as one line of text that is safe for a terminal."""
    return "".join(
        " " if character in "\n\r\t" else character
        for character in str(value)
        if character in "\n\r\t" or unicodedata.category(character) not in _HIDDEN
    )


def cell(value: Any) -> str:
    """Return the whole value as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(key)} -> {clean(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(clean(item) for item in value) or "-"
    return clean(value)


def short_cell(name: str, value: Any, now: datetime) -> str:
    """Return the value for people: an age for a time, a size with its unit, the beginning of a digest.

    Args:
        name: key of the value in the server's answer, which tells the kind of the value.
    """
    if isinstance(value, str):
        if match := _DIGEST.fullmatch(value):
            return match[1]
        if name.endswith("_at") and (at := _time(value)) is not None:
            return _age(at, now)
    if name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
        return decimal(value)
    return cell(value)


def _time(text: str) -> Optional[datetime]:
    try:
        # Before Python 3.11 the parser does not know the suffix Z.
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def _age(at: datetime, now: datetime) -> str:
    """Return the distance in the largest unit that fits: ``3h ago``, or ``in 5d``."""
    seconds = int((now - at).total_seconds())
    size, unit = next((pair for pair in _AGES if abs(seconds) >= pair[0]), _AGES[-1])
    distance = f"{abs(seconds) // size}{unit}"
    return f"{distance} ago" if seconds >= 0 else f"in {distance}"


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose times, in seconds since 1970, are texts as in the server's other answers."""
    return {key: _text_of(value) if key.endswith("_at") else value for key, value in row.items()}


def _text_of(at: Any) -> Any:
    if not isinstance(at, (int, float)) or isinstance(at, bool):
        return at
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")
