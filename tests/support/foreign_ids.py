"""Answers about another tenant's objects, compared with those about objects that never existed."""

import re
from collections.abc import Iterator

import httpx

_IDS = re.compile(r"(file-|upload_|part_|batch_)[0-9a-f]{16,}", re.IGNORECASE)
#: Headers that differ between any two answers.
_OWN = {"date", "x-request-id"}


def masked(answer: httpx.Response) -> tuple[int, str, list[str]]:
    """Return an answer without ids and what differs between any two answers."""
    headers = sorted(f"{name}: {value}" for name, value in answer.headers.items() if name not in _OWN)
    return answer.status_code, _IDS.sub("ID", answer.text), headers


def disguises(identity: str) -> Iterator[str]:
    """Yield forms of an id that a careless comparison or decoding takes for the same, for the path of a URL."""
    yield identity
    yield identity.upper()
    yield identity[:-1] + f"%{ord(identity[-1]):02x}"
    yield f"%20{identity}"
    yield f"{identity}%00"
    yield f"{identity}%0a"
