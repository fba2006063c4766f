"""API keys as text: ``tnr_<key id>_<secret><checksum>``.

The key id (16 characters) is public and finds the row; the secret (43) holds at least 256 random bits; the checksum
(6) is the CRC-32 of everything before it. All are base62, so a key is one word to a double click and to secret
scanners, and a mistyped one is refused without a look into the database.
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
    """A new key; ``text`` is shown once and never stored."""

    id: str
    text: str = field(repr=False)


def mint_key() -> MintedKey:
    """Make a key from the system's random source."""
    key_id = _random_text(_ID_LENGTH)
    body = f"tnr_{key_id}_{_random_text(_SECRET_LENGTH)}"
    return MintedKey(key_id, body + _checksum(body))


def parse_key(text: str) -> str | None:
    """The key id, or None if this is no well-formed key or its checksum is wrong."""
    match = _KEY.fullmatch(text)
    if match is None or _checksum(match[1]) != match[3]:
        return None
    return match[2]


class KeyHasher:
    """HMAC-SHA256 with the server's pepper: a stolen database alone verifies no guess.

    Raises:
        ValueError: a pepper is empty.
    """

    def __init__(self, peppers: Peppers) -> None:
        if not all(peppers.every):
            raise ValueError("pepper: found nothing, allowed at least one byte")
        self._peppers = peppers.every

    def hash(self, text: str) -> str:
        """What is kept of a new key: 64 lower-case hex digits."""
        return _hmac(self._peppers[0], text)

    def hashes(self, text: str) -> tuple[str, ...]:
        """All that may be kept of a key: the hash of now, and those under other peppers."""
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
