"""Forged keys: their format is public, see :mod:`app.services.access.key_format`."""

import random
import string
import zlib

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_BODY_LENGTH = len("tnr_") + 16 + len("_") + 43

#: Offset of the secret in a key.
SECRET_AT = _BODY_LENGTH - 43


def guess(begin: str = "") -> str:
    """Forge a well-formed key with this prefix of a key, a random rest, and a right checksum."""
    chance = f"tnr_{_some(16)}_{_some(43)}"
    body = begin[:_BODY_LENGTH] + chance[len(begin) :]
    return body + checksum(body)


def checksum(body: str) -> str:
    """Return the CRC-32 in base62, six digits."""
    value, digits = zlib.crc32(body.encode()), ""
    for _ in range(6):
        value, digit = divmod(value, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _some(length: int) -> str:
    return "".join(random.choices(_ALPHABET, k=length))
