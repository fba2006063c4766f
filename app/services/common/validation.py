"""Checks of plain values for several services: display names, page sizes, cursors, times, weights, limits."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from app.domain.errors import InvalidRequest
from app.domain.limits.limits import COSTS, Limits
from app.domain.money import InvalidAmount, parse_amount
from app.domain.pages import Page
from app.domain.searches import Search

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
_MAX_NAME = 100
_ID = re.compile("[1-9][0-9]{0,9}", re.ASCII)
#: Slugs, also of a tenant, an adapter and an alias as `tenant/adapter:alias`.
_NAME = re.compile("[a-z0-9._/:-]{1,191}", re.ASCII)

_MICROSECONDS = re.compile("[0-9]{1,18}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
#: Longest time from now to a time.
_AHEAD = timedelta(days=366)

#: Maximum of the registry's BigInteger columns.
MOST = 2**63 - 1

Item = TypeVar("Item")
Numbers = TypeVar("Numbers", bound="DataclassInstance")


def checked_name(name: str, *, field: str = "name") -> str:
    """Check a display name: 1 to 100 printable characters.

    Raises:
        InvalidRequest
    """
    # isprintable() also refuses NUL and lone surrogates, which databases refuse.
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise _invalid(field, name, f"1 to {_MAX_NAME} printable characters")
    return name


def checked_seconds(field: str, value: int, *, least: int, most: int) -> int:
    """Check a duration in seconds against inclusive bounds.

    Raises:
        InvalidRequest
    """
    if not least <= value <= most:
        raise _invalid(field, value, f"a number of seconds from {least} to {most}")
    return value


def checked_time(field: str, moment: datetime | None, now: datetime) -> None:
    """Check a time of a filter: with its time zone, from the year 2000 to one year from now.

    Raises:
        InvalidRequest
    """
    # Conversion of other times to UTC can overflow.
    if moment is not None and (moment.tzinfo is None or not _EARLIEST <= moment <= now + _AHEAD):
        raise InvalidRequest(
            f"{field} is {moment.isoformat()}; it must be a time with its time zone, from the year 2000 to one year "
            "from now.",
            param=field,
        )


def checked_weight(weight: float) -> float:
    """Check a tenant's scheduling weight. The bounds keep any two weights within a factor of a million.

    Raises:
        InvalidRequest
    """
    # NaN fails every comparison, so it is refused too.
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise _invalid("weight", weight, f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return weight


def patched(field: str, old: Numbers, raw: object) -> Numbers:
    """Apply a JSON merge patch to a dataclass of numbers: a number sets a field, null clears it, the rest stays.

    Args:
        raw: object of numbers and nulls, or None to clear every field.

    Raises:
        InvalidRequest
    """
    names = [x.name for x in fields(old)]
    if raw is None:
        return replace(old, **dict.fromkeys(names))
    if not isinstance(raw, Mapping):
        raise _invalid(field, raw, "an object or null")
    for name, value in raw.items():
        if name not in names:
            message = f"{field} has no field {str(name)[:80]!r}. Its fields are {', '.join(names)}."
            raise InvalidRequest(message, param=field)
        # bool is a subclass of int in Python. A float such as 1.0 is refused too.
        if value is not None and (type(value) is not int or not 0 <= value <= MOST):
            raise _invalid(f"{field}.{name}", value, f"an integer from 0 to {MOST}, or null for no limit")
    return replace(old, **raw)


def patched_limits(old: Limits, raw: object) -> Limits:
    """Apply a JSON merge patch to limits, see :func:`patched`. Amounts of money are decimals, ``"12.50"``.

    Raises:
        InvalidRequest
    """
    if not isinstance(raw, Mapping):
        return patched("limits", old, raw)
    counts = {name: value for name, value in raw.items() if name not in COSTS}
    costs = {name: None if raw[name] is None else _amount(f"limits.{name}", raw[name]) for name in raw.keys() & COSTS}
    return replace(patched("limits", old, counts), **costs)


def _amount(field: str, text: object) -> int:
    try:
        return parse_amount(text)
    except InvalidAmount as error:
        raise _invalid(field, text, f"{error}, or null for no limit") from None


def checked_limit(limit: int) -> int:
    """Check a page size.

    Raises:
        InvalidRequest
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise _invalid("limit", limit, f"a number from 1 to {MAX_LIMIT}")
    return limit


def read_cursor(cursor: str | None, pattern: re.Pattern[str]) -> str | None:
    """Decode a cursor made by ``page_of``; None for the first page.

    Raises:
        InvalidRequest: the cursor does not belong to this kind of list.
    """
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        text = ""
    if not pattern.fullmatch(text):
        raise _invalid("cursor", cursor, "the next_cursor of the previous page")
    return text


def read_position(cursor: str | None, search: Search) -> str | None:
    """Decode the cursor of a list that ``search`` orders; None for the first page.

    Raises:
        InvalidRequest: the cursor does not belong to this kind of list.
    """
    return read_cursor(cursor, _NAME if search.sort.by_name else _ID)


def checked_search(search: Search) -> Search:
    """Check the text of a search: 1 to 100 printable characters.

    Raises:
        InvalidRequest
    """
    if search.text is not None:
        checked_name(search.text, field="q")
    return search


def time_position(moment: datetime) -> str:
    """Write a time for a cursor: microseconds since 1970."""
    return str((moment - _EPOCH) // _MICROSECOND)


def read_time_position(position: str) -> datetime:
    """Read a time from a decoded cursor.

    Raises:
        InvalidRequest
    """
    if _MICROSECONDS.fullmatch(position):
        with suppress(OverflowError):
            return _EPOCH + int(position) * _MICROSECOND
    raise InvalidRequest("cursor is not the next_cursor of the previous page.", param="cursor")


def page_of(items: Sequence[Item], limit: int, position: Callable[[Item], object]) -> Page[Item]:
    """Build a page from up to ``limit + 1`` ordered items. The extra item shows that a next page exists."""
    shown = tuple(items[:limit])
    if len(items) <= limit:
        return Page(shown, None)
    return Page(shown, base64.urlsafe_b64encode(str(position(shown[-1])).encode()).decode())


def _invalid(field: str, value: object, allowed: str) -> InvalidRequest:
    """Build the error for a value that is not allowed. ``allowed`` completes "it must be"."""
    return InvalidRequest(f"{field} is {value!r:.80}; it must be {allowed}.", param=field)
