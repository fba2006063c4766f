"""Pages of lists."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list.

    Attributes:
        data: at most ``limit`` items.
        next_cursor: opaque; asks for the page after this one. None on the last page.
    """

    data: tuple[Item, ...]
    next_cursor: str | None
