"""Peppers: the server's master secret, from which all its other secrets are derived.

A stolen database without the pepper proves nothing about a key. With another pepper, no stored key works. The pepper
therefore comes from the settings, or is generated once and stored in HOME. To rotate it, a server accepts old peppers
together with the current one for a while.
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
    """No pepper exists, and a new one would not match the registry's keys."""


class WrongPepper(ValueError):
    """The pepper differs from the one under which the registry's keys were made."""


@dataclass(frozen=True, slots=True)
class Peppers:
    """The current pepper, and others that are still accepted.

    Attributes:
        current: pepper for all new secrets.
        others: peppers under which existing secrets stay valid.
    """

    current: bytes = field(repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def every(self) -> tuple[bytes, ...]:
        """All peppers, the current one first."""
        return self.current, *self.others

    def derived(self, purpose: str, *words: str) -> tuple[bytes, ...]:
        """Derive a purpose's key from each pepper, the current one first. See :func:`derive`."""
        return tuple(derive(pepper, purpose, *words) for pepper in self.every)


def load_peppers(settings: Settings, *, make: bool = True) -> Peppers:
    """Load the pepper from the settings or from ``HOME/secrets/pepper``, and the other accepted peppers.

    Two processes that start at the same time on one HOME get the same pepper.

    Args:
        make: whether to create a missing pepper.

    Raises:
        MissingPepper: there is no pepper, and ``make`` is false.
        InvalidPepper: a pepper is shorter than 32 bytes.
        OSError: HOME cannot be read or written.
    """
    accepted = (secret.get_secret_value().encode() for secret in settings.accepted_peppers)
    others = tuple(_checked(pepper, "TENORA_ACCEPTED_PEPPERS") for pepper in accepted)
    if settings.pepper is not None:
        return Peppers(_checked(settings.pepper.get_secret_value().encode(), "TENORA_PEPPER"), others)
    path = settings.home / "secrets" / "pepper"
    if not path.exists():
        if not make:
            raise MissingPepper(
                f"There is no pepper at {path}, but this registry's keys need one. Set TENORA_PEPPER, or copy "
                "HOME/secrets/pepper from the server that created the keys or from its backup. If it is lost, run "
                "`tenora server init --new-pepper` and create every key again."
            )
        _make(path)
    return Peppers(_checked(path.read_bytes().strip(), str(path)), others)


def derive(pepper: bytes, purpose: str, *words: str) -> bytes:
    """Derive a 32-byte key for one purpose with HKDF-SHA256 (RFC 5869). Words must not contain NUL."""
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
        # A hard link appears whole and never replaces a file: the second process keeps the first one's pepper.
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
        raise InvalidPepper(f"{source} has {len(pepper)} bytes; a pepper must have at least {MIN_PEPPER_BYTES}.")
    return pepper
