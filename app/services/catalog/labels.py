"""User metadata of versions: labels, card and training-run link. Plain text, never rendered."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from app.domain.errors import InvalidRequest

MAX_LABELS = 32
MAX_VALUE = 200
MAX_CARD_BYTES = 64 * 1024
MAX_LINK = 500

# Kubernetes' grammar of label names, without the prefix and in lower case.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_NAME_WORDS = "1 to 63 of a-z 0-9 . _ -, first and last a letter or digit"
_VALUE_WORDS = f"a string of 0 to {MAX_VALUE} printable characters"
_LINK_WORDS = f"an http or https URL of at most {MAX_LINK} characters, without a user or password"


def checked_labels(raw: object) -> dict[str, str]:
    """Check labels: a map from names to values, with at most 32 entries.

    Raises:
        InvalidRequest
    """
    if not isinstance(raw, Mapping):
        raise _invalid("labels", raw, "an object from names to strings")
    if len(raw) > MAX_LABELS:
        raise _invalid("labels", f"{len(raw)} labels", f"{MAX_LABELS} labels")
    return dict(_label(name, value) for name, value in raw.items())


def label_filters(written: Iterable[str]) -> dict[str, str]:
    """Parse the ``label=team=x`` filters of a query. A version must match all of them.

    Raises:
        InvalidRequest
    """
    wanted: dict[str, str] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise _invalid("label", text, f"NAME=VALUE with a name of {_NAME_WORDS}")
        if not _is_value(value):
            raise _invalid("label", value, _VALUE_WORDS)
        if wanted.setdefault(name, value) != value:
            raise _invalid("label", text, f"one value for {name!r}")
        if len(wanted) > MAX_LABELS:
            raise _invalid("label", f"{len(wanted)} labels", f"{MAX_LABELS} labels")
    return wanted


def checked_card(raw: object) -> str:
    """Check a card: free-form text about the version, stored unchanged and always displayed as plain text.

    Raises:
        InvalidRequest
    """
    if not isinstance(raw, str):
        raise _invalid("card", raw, "a string")
    try:
        size = len(raw.encode())
    except UnicodeEncodeError:
        raise _invalid("card", "half of a surrogate pair", "Unicode text") from None
    if size > MAX_CARD_BYTES:
        raise _invalid("card", f"{size} bytes", f"{MAX_CARD_BYTES} bytes of UTF-8")
    if "\0" in raw:
        # PostgreSQL refuses NUL in text.
        raise _invalid("card", "the character NUL", "any other character")
    return raw


def checked_training_run(raw: object) -> str | None:
    """Check the link to the run that trained the version; None if there is none.

    Raises:
        InvalidRequest
    """
    if raw is None:
        return None
    if not isinstance(raw, str) or not _is_link(raw):
        # The value is not quoted: it may hold a password.
        raise InvalidRequest(f"training_run: found something else, allowed {_LINK_WORDS}", param="training_run")
    return raw


def _label(name: object, value: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _invalid("labels", name, f"names of {_NAME_WORDS}")
    if not isinstance(value, str) or not _is_value(value):
        raise _invalid(f"labels.{name}", value, _VALUE_WORDS)
    return name, value


def _is_value(value: str) -> bool:
    # isprintable() also refuses NUL and lone surrogates, which databases refuse.
    return len(value) <= MAX_VALUE and value.isprintable()


def _is_link(text: str) -> bool:
    # urlsplit silently drops white space and control characters, and browsers read a backslash as a slash.
    if len(text) > MAX_LINK or not text.isprintable() or set(text) & {" ", "\\"}:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and _is_host(parts)
    except ValueError:
        return False


def _is_host(parts: SplitResult) -> bool:
    """Return whether the URL has a host and no user or password.

    Raises:
        ValueError: the port is not a number up to 65535.
    """
    return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0


def _invalid(field: str, found: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: found {str(found)[:80]!r}, allowed {allowed}", param=field)
