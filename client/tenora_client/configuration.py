"""Resolve the server's address and the key: arguments, then the environment, then a profile."""

from __future__ import annotations

import os
from dataclasses import dataclass

import httpx

from tenora_client.errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Access:
    """Address of a server, and a key for it."""

    url: str
    key: str

    def __repr__(self) -> str:
        # The key must not end in a notebook's output or a log.
        return f"Access(url={self.url!r}, key={shown_key(self.key)!r})"


def resolve(url: str | None, key: str | None, profile: str | None = None) -> Access:
    """Return the access that the arguments, the environment or a profile name.

    A profile's key is used for the profile's own address only.

    Raises:
        ConfigurationError: there is no key, or address or key are malformed.
    """
    url, key = url or os.environ.get("TENORA_URL"), key or os.environ.get("TENORA_KEY")
    if url is None or key is None:
        saved = profile_access(profile or os.environ.get("TENORA_PROFILE"))
        if saved is not None:
            url = url or saved.url
            if key is None and url.rstrip("/") == saved.url.rstrip("/"):
                key = saved.key
    address = _checked_url(url or DEFAULT_URL)
    if key is None:
        raise ConfigurationError(
            f"There is no key for {address}. Give it as `key`, set TENORA_KEY, or run `tenora login`."
        )
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("The key has characters that are not printable ASCII. Copy the key again.")
    return Access(address, key)


def profile_access(_name: str | None) -> Access | None:
    """Return the access of a saved profile, or of the current one if no name is given."""
    return None


def shown_key(key: str) -> str:
    """Return the public part of a key, for messages."""
    return "_".join(key.split("_")[:2]) if key.startswith("tnr_") else "..."


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
