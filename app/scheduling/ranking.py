"""Items in the order of keys that change: a heap whose outdated entries go when they come to its top."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeVar

Key = TypeVar("Key", int, float)
Item = TypeVar("Item", int, str)
Thing = TypeVar("Thing")

#: So many times as many outdated entries as there are items, and some more, may be in a heap. More of them would be
#: thrown out less often, and fill the processor's cache.
_OUTDATED, _SLACK = 1, 32


class Ranking(dict[Item, Key]):
    """A priority queue with one key per item, smallest first; equal keys go by item.

    It reads as a dict of items to keys, in no order, and is changed by ``set`` and ``discard`` only. These take
    logarithmic time, ``first`` the same in the mean; memory stays proportional to the most items that it had lately,
    however often their keys change.
    """

    __slots__ = ("_heap", "_most")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Key, Item]] = []
        #: With more entries the outdated ones are thrown out.
        self._most = _SLACK

    def set(self, item: Item, key: Key) -> None:
        """Add an item, or change its key."""
        known = self.get(item)
        if known == key:
            return
        self[item] = key
        heap = self._heap
        if known is not None and heap[0][0] == known and heap[0][1] == item:
            heapreplace(heap, (key, item))
            return
        heappush(heap, (key, item))
        if len(heap) > self._most:
            heap[:] = [(key, item) for item, key in self.items()]
            heapify(heap)
            self._most = (1 + _OUTDATED) * len(heap) + _SLACK

    def discard(self, item: Item) -> None:
        """Remove an item if it is there."""
        if self.pop(item, None) is not None and not self:
            self._heap.clear()
            self._most = _SLACK

    def first(self) -> tuple[Key, Item] | None:
        """The smallest key and its item, or None if there is none."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self.get(entry[1]) == entry[0]:
                return entry
            heappop(heap)
        return None

    def ordered(self) -> Iterator[Item]:
        """The items by key, as they are now; those that go or change meanwhile are left out."""
        heap = self._heap.copy()
        previous: tuple[Key, Item] | None = None
        while heap:
            entry = heappop(heap)
            if entry != previous and self.get(entry[1]) == entry[0]:
                yield entry[1]
            previous = entry


class Numbered(dict[int, Thing]):
    """A priority queue of things by numbers that nothing else has, smallest first.

    A :class:`Ranking` for less time: what a comparison looks at is a number, and not a pair of things elsewhere. It is
    changed by ``add`` and ``discard`` only.
    """

    __slots__ = ("_heap", "_most")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []
        self._most = _SLACK

    def add(self, number: int, thing: Thing) -> None:
        """Add a thing under a number that is not there."""
        self[number] = thing
        heap = self._heap
        heappush(heap, number)
        if len(heap) > self._most:
            heap[:] = self
            heapify(heap)
            self._most = (1 + _OUTDATED) * len(heap) + _SLACK

    def discard(self, number: int) -> None:
        """Remove what is there under a number, if anything is."""
        if self.pop(number, None) is not None and not self:
            self._heap.clear()
            self._most = _SLACK

    def first(self) -> int | None:
        """The smallest number, or None if there is none."""
        heap = self._heap
        while heap:
            if heap[0] in self:
                return heap[0]
            heappop(heap)
        return None
