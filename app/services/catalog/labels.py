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
_NAME_RULE = "A name has 1 to 63 of a-z 0-9 . _ - and begins and ends with a letter or digit."
_VALUE_WORDS = f"a string of at most {MAX_VALUE} printable characters"
_LINK_WORDS = f"an http or https URL of at most {MAX_LINK} characters, without a user or password"


def checked_labels(raw: object) -> dict[str, str]:
    """Check labels: a map from names to values, with at most 32 entries.

    Raises:
        InvalidRequest
    """
    if not isinstance(raw, Mapping):
        raise _invalid("labels", raw, "an object that maps names to strings")
    if len(raw) > MAX_LABELS:
        raise InvalidRequest(f"labels has {len(raw)} entries; the limit is {MAX_LABELS}.", param="labels")
    return dict(_label(name, value) for name, value in raw.items())


def label_filters(written: Iterable[str]) -> dict[str, str]:
    """Parse the ``label=team=x`` filters of a query. A version must match all of them.

    Raises:
        InvalidRequest
    """
    filters: dict[str, str] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InvalidRequest(f"label is {text[:80]!r}, but must be NAME=VALUE. {_NAME_RULE}", param="label")
        if not _is_value(value):
            message = f"The value of the label {name!r} is {value[:80]!r}, but must be {_VALUE_WORDS}."
            raise InvalidRequest(message, param="label")
        if filters.setdefault(name, value) != value:
            raise InvalidRequest(f"The label {name!r} has two values. Send one value for each name.", param="label")
        if len(filters) > MAX_LABELS:
            raise InvalidRequest(f"The query filters by more than {MAX_LABELS} labels. Send fewer.", param="label")
    return filters


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
        message = "card holds half of a surrogate pair. Send valid Unicode text."
        raise InvalidRequest(message, param="card") from None
    if size > MAX_CARD_BYTES:
        raise InvalidRequest(f"card has {size} bytes of UTF-8; the limit is {MAX_CARD_BYTES}.", param="card")
    if "\0" in raw:
        # PostgreSQL refuses NUL in text.
        raise InvalidRequest("card holds the character NUL. Remove it.", param="card")
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
        raise InvalidRequest(f"training_run must be {_LINK_WORDS}.", param="training_run")
    return raw


def _label(name: object, value: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(f"labels has the name {str(name)[:80]!r}. {_NAME_RULE}", param="labels")
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


def _invalid(field: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is {str(value)[:80]!r}, but must be {allowed}.", param=field)
