"""Search and order of lists, as frozen data."""

from dataclasses import dataclass
from enum import StrEnum


class Sort(StrEnum):
    """Order of a list; a minus reverses it."""

    CREATED = "created"
    NEWEST = "-created"
    NAME = "name"
    NAME_REVERSED = "-name"

    @property
    def by_name(self) -> bool:
        return self in {Sort.NAME, Sort.NAME_REVERSED}

    @property
    def descending(self) -> bool:
        return self in {Sort.NEWEST, Sort.NAME_REVERSED}


@dataclass(frozen=True, slots=True)
class Search:
    """Search of a list.

    Attributes:
        text: part of a name, in any case; None for all.
    """

    text: str | None = None
    sort: Sort = Sort.CREATED


#: All items, the oldest first.
EVERYTHING = Search()
#: All items, by name.
BY_NAME = Search(sort=Sort.NAME)
