"""Mutations of bytes and of JSON.

All randomness comes from the generator that is passed in.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 2**21

_NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 511, 512, 513, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63)

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 4, 63, 64, 65, 2**15, 2**31, 2**53 + 1, 2**63, 10**19, 10**30),
    *(0.5, -0.0, 1e308, -1e-320),
    *("", "a", "LORA", "all-linear", "q_proj", "\0", "\u202e", "\ud800", "a" * 300, "(a+)+$", "../../etc", "NaN"),
    *([], {}, [[]], [{}], ["q_proj"] * 3, {"a": 1}, {"": ""}, [0, 4], [0, -1], [0] * 9, {"q_proj": 8}),
)  # fmt: skip

# Text that JSON writers never produce and some readers accept.
_FRAGMENTS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"01",
    b"1" * 400,
    b'"\\ud800"',
    b'"\\u0000"',
    b"\xff",
)


def mutate_bytes(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Apply one to four mutations. ``others`` are sources for splicing."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_CHANGES)(rng, data, others)
    return data[:MAX_BYTES]


def _place(rng: random.Random, data: bytes) -> int:
    """Pick an offset, mostly near the ends, where headers are."""
    size = len(data)
    if not size:
        return 0
    near = rng.choice((16, 64, 600, size, size))
    place = rng.randrange(min(near, size))
    return place if rng.random() < 0.6 else size - 1 - place


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = _place(rng, data)
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 64, 512, 4096)))


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    place = _place(rng, data)
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _set(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = _place(rng, data)
    return data[:place] + bytes([rng.choice((0, 1, 9, 10, 13, 32, 34, 45, 47, 92, 127, 255))]) + data[place + 1 :]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    width = rng.choice((1, 2, 4, 8))
    value = (rng.choice(_NUMBERS) + rng.choice((0, 0, -1, 1))) % 256**width
    place = _place(rng, data)
    return data[:place] + value.to_bytes(width, rng.choice(("little", "big"))) + data[place + width :]


def _delete(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[start:end] * rng.choice((2, 2, 2, 3, 10, 100)) + data[end:]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = _place(rng, data)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 4, 16, 200))) + data[place:]


def _zero(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + bytes(end - start) + data[end:]


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = _place(rng, data)
    return data[:place] if rng.random() < 0.8 else data[place:]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    start, end = _span(rng, other)
    if rng.random() < 0.3:
        return data[: _place(rng, data)] + other[start:]
    place = _place(rng, data)
    return data[:place] + other[start:end] + data[place + rng.choice((0, end - start)) :]


_CHANGES = (_flip, _flip, _set, _number, _number, _delete, _repeat, _insert, _zero, _truncate, _splice)


def mutate_json(rng: random.Random, value: Any) -> Any:
    """Copy a JSON value with one place changed.

    In an object, a key may be added, removed or renamed.
    """
    if isinstance(value, dict) and value and rng.random() < 0.85:
        return _mutate_object(rng, dict(value))
    if isinstance(value, list) and value and rng.random() < 0.75:
        items = list(value)
        index = rng.randrange(len(items))
        match rng.randrange(4):
            case 0:
                del items[index]
            case 1:
                items.insert(index, rng.choice(_VALUES))
            case _:
                items[index] = mutate_json(rng, items[index])
        return items
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 8, -8, value, 2**32))
    if isinstance(value, str) and rng.random() < 0.5:
        return mutate_text(rng, value)
    return rng.choice(_VALUES)


def _mutate_object(rng: random.Random, found: dict[str, Any]) -> dict[str, Any]:
    key = rng.choice(list(found))
    match rng.randrange(8):
        case 0:
            del found[key]
        case 1:
            found[mutate_text(rng, key)] = rng.choice(_VALUES)
        case 2:
            found[mutate_text(rng, key)] = found.pop(key)
        case _:
            found[key] = mutate_json(rng, found[key])
    return found


def mutate_text(rng: random.Random, text: str) -> str:
    raw = mutate_bytes(rng, text.encode("utf-8", "surrogatepass")[:2000])
    return raw.decode("utf-8", rng.choice(("replace", "ignore")))


def dump(rng: random.Random, value: Any) -> bytes:
    """Serialise to JSON, occasionally with text that no JSON writer produces."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.8, indent=rng.choice((None, None, 2)))
    raw = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        place = rng.randrange(len(raw) + 1)
        raw = raw[:place] + rng.choice(_FRAGMENTS) + raw[place:]
    if rng.random() < 0.03 and raw.startswith(b"{") and len(raw) > 2:
        raw = raw[:-1] + b"," + raw[1:]  # every key twice
    return raw
