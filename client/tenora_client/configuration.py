"""Resolve the server's address and the key: arguments, then the environment, then a profile."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import httpx

from tenora_client.errors import ConfigurationError
from tenora_client.profiles import load_profiles

DEFAULT_URL = "http://127.0.0.1:8000"

_KEY_ID = re.compile(r"(tnr_[0-9A-Za-z]{16})_", re.ASCII)


@dataclass(frozen=True)
class Access:
    """Address of a server, and a key for it."""

    url: str
    key: str

    def __repr__(self) -> str:
        # The key must not end in a notebook's output or a log.
        return f"Access(url={self.url!r}, key={key_id(self.key)!r})"


def resolve(url: str | None, key: str | None, profile: str | None = None) -> Access:
    """Return the access that the arguments, the environment or a profile name.

    An argument comes before the environment, also if it names a profile. A profile's key is used for the profile's own
    address only.

    Raises:
        ConfigurationError: there is no key, address or key are malformed, or the profile cannot be read.
    """
    if profile is None:
        url, key = url or os.environ.get("TENORA_URL"), key or os.environ.get("TENORA_KEY")
    if not (url and key):
        saved = load_profiles().get(profile or os.environ.get("TENORA_PROFILE") or None)
        if saved is not None:
            url = url or saved.url
            key = saved.key if not key and saved.fits(url) else key
    address = _checked_url(url or DEFAULT_URL)
    if not key:
        raise ConfigurationError(
            f"There is no key for {address}. Give it as `key`, set TENORA_KEY, or run `tenora login`."
        )
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("The key has characters that are not printable ASCII. Copy the key again.")
    return Access(address, key)


def key_id(key: str) -> str:
    """Return a key's public part, for messages; ``tnr_...`` for a malformed key, of which any part may be secret."""
    match = _KEY_ID.match(key)
    return match[1] if match else "tnr_..."


def _checked_url(url: str) -> str:
    url = url.strip()
    if "://" not in url:
        raise ConfigurationError(f"The address {url!r} has no scheme. Write http://{url}.")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(
            f"{url!r} is not a valid address ({error}). Write one such as {DEFAULT_URL}."
        ) from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigurationError(f"{url!r} is not a valid address. Write one such as {DEFAULT_URL}.")
    return url.rstrip("/")
