"""Cursor pagination."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list.

    Attributes:
        data: items, at most ``limit``.
        next_cursor: opaque cursor of the next page; None on the last page.
    """

    data: tuple[Item, ...]
    next_cursor: str | None
