"""The pepper: the server's one secret, from which all others come.

Without it a stolen database proves nothing about a key, and with another one no stored key works,
so it comes from the settings or is made once and kept. It can be rotated: others may be good beside it for a while.
"""

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.settings import Settings

MIN_PEPPER_BYTES = 32


class InvalidPepper(ValueError):
    """The pepper is too short to be a secret."""


class MissingPepper(ValueError):
    """There is no pepper, and a new one would be another than the registry's."""


class WrongPepper(ValueError):
    """The pepper is another than the one that the registry's keys were made under."""


@dataclass(frozen=True, slots=True)
class Peppers:
    """What secrets are derived from.

    Attributes:
        current: everything new is made under it.
        others: what was made under these is still good.
    """

    current: bytes = field(repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def every(self) -> tuple[bytes, ...]:
        """The current one first."""
        return self.current, *self.others

    def derived(self, purpose: str, *words: str) -> tuple[bytes, ...]:
        """A purpose's key under each of them, the current one's first; see :func:`derive`."""
        return tuple(derive(pepper, purpose, *words) for pepper in self.every)


def load_peppers(settings: Settings, *, make: bool = True) -> Peppers:
    """The pepper from the settings, or the one in ``HOME/secrets/pepper``; and the others.

    Two processes that start at once on the same HOME get the same pepper.

    Args:
        make: make one if there is none.

    Raises:
        MissingPepper: there is none, and none was to be made.
        InvalidPepper: shorter than 32 bytes.
        OSError: HOME cannot be read or written.
    """
    given = (one.get_secret_value().encode() for one in settings.accepted_peppers)
    others = tuple(_checked(one, "TENORA_ACCEPTED_PEPPERS") for one in given)
    if settings.pepper is not None:
        return Peppers(_checked(settings.pepper.get_secret_value().encode(), "TENORA_PEPPER"), others)
    path = settings.home / "secrets" / "pepper"
    if not path.exists():
        if not make:
            raise MissingPepper(
                f"there is no pepper at {path}, and this registry's keys were made under one. Set TENORA_PEPPER, or "
                "copy HOME/secrets/pepper from the server that made them, or from its backup. If it is lost, run "
                "`tenora init --new-pepper`: every key must be made anew then."
            )
        _make(path)
    return Peppers(_checked(path.read_bytes().strip(), str(path)), others)


def derive(pepper: bytes, purpose: str, *words: str) -> bytes:
    """A key of 32 bytes for one purpose, by HKDF-SHA256 (RFC 5869); no word holds a NUL."""
    info = "\0".join((f"tenora {purpose}", *words)).encode()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(pepper)


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".pepper-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link appears whole and never replaces: whoever comes second keeps the first one's pepper.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
        _sync_directory(path.parent)
    finally:
        temporary.unlink()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checked(pepper: bytes, source: str) -> bytes:
    if len(pepper) < MIN_PEPPER_BYTES:
        raise InvalidPepper(f"{source}: found {len(pepper)} bytes, allowed {MIN_PEPPER_BYTES} or more")
    return pepper
