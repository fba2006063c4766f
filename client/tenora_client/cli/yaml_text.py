"""Write plain JSON data as YAML: block style, every text quoted as in JSON, which each YAML parser reads alike."""

import json
import re
from collections.abc import Iterator
from typing import Any


def yaml_text(value: Any) -> str:
    """Return the value as a YAML document that ends with a line break. It is ASCII only."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            head = f"{_name(name)}:"
            if len(head) > _LONGEST_KEY:
                yield f"? {head[:-1]}"
                head = ":"
            yield from _entry(head, item)
    elif isinstance(value, list) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)) and value:
        yield head
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _name(name: str) -> str:
    # A plain word with a letter at its front is safe, except for YAML's words for true, false and null.
    plain = name.replace("_", "").isalpha() and name.isascii() and name.isidentifier()
    return name if plain and name.lower() not in _RESERVED else _scalar(name)


def _scalar(value: Any) -> str:
    # JSON escapes a character beyond 16 bits as a surrogate pair, which YAML would read as two characters.
    return _PAIR.sub(_one_escape, json.dumps(value))


def _one_escape(pair: "re.Match[str]") -> str:
    character: str = json.loads('"' + pair[0] + '"')
    return f"\\U{ord(character):08x}"


#: YAML finds a longer key only after a question mark.
_LONGEST_KEY = 1024
_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", re.ASCII)
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
