"""API key format: ``tnr_<key id>_<secret><checksum>``.

- Key id (16 characters): public, finds the row.
- Secret (43 characters): at least 256 random bits.
- Checksum (6 characters): CRC-32 of everything before it.

All parts are base62, so a double click selects the whole key and secret scanners see one word. A mistyped key is
refused without a database query.
"""

import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field

from app.services.access.peppers import Peppers

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH = 16
_SECRET_LENGTH = 43
_CHECKSUM_LENGTH = 6
_KEY = re.compile(
    rf"(tnr_([0-9A-Za-z]{{{_ID_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})", re.ASCII
)
KEY_ID = re.compile(rf"[0-9A-Za-z]{{{_ID_LENGTH}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. Its ``text`` is shown once and never stored."""

    id: str
    text: str = field(repr=False)


def mint_key() -> MintedKey:
    """Generate a key from the system's random source."""
    key_id = _random_text(_ID_LENGTH)
    body = f"tnr_{key_id}_{_random_text(_SECRET_LENGTH)}"
    return MintedKey(key_id, body + _checksum(body))


def parse_key(text: str) -> str | None:
    """Parse a key and return its id, or None if the key is malformed or its checksum is wrong."""
    match = _KEY.fullmatch(text)
    if match is None or _checksum(match[1]) != match[3]:
        return None
    return match[2]


class KeyHasher:
    """Key hashing: HMAC-SHA256 under the server's pepper, so that a stolen database alone verifies no guess.

    Raises:
        ValueError: a pepper is empty.
    """

    def __init__(self, peppers: Peppers) -> None:
        if not all(peppers.every):
            raise ValueError("A pepper is empty; it must have at least one byte.")
        self._peppers = peppers.every

    def hash(self, text: str) -> str:
        """Hash a new key under the current pepper: 64 lower-case hex digits."""
        return _hmac(self._peppers[0], text)

    def hashes(self, text: str) -> tuple[str, ...]:
        """Hash a key under every accepted pepper, the current one first."""
        return tuple(_hmac(pepper, text) for pepper in self._peppers)


def _hmac(pepper: bytes, text: str) -> str:
    return hmac.digest(pepper, text.encode(), "sha256").hex()


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
