"""Items in the order of keys that change: a heap whose outdated entries go when they come to its top."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Key = TypeVar("Key", int, float)
Item = TypeVar("Item", int, str)
Number = TypeVar("Number", int, float)
Thing = TypeVar("Thing")

#: So many entries for each item, and some more, may be in a heap: the others are outdated. More of them would be thrown
#: out less often, and fill the processor's cache.
_ENTRIES, _SLACK = 2, 32


class Ranking(dict[Item, Key]):
    """A priority queue with one key per item, smallest first; equal keys go by item.

    It reads as a dict of items to keys, in no order, and is changed by ``set`` and ``discard`` only. These take
    logarithmic time, ``first`` the same in the mean; memory stays proportional to the items, however often their keys
    change.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Key, Item]] = []

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
        if len(heap) > _ENTRIES * len(self) + _SLACK:
            heap[:] = zip(self.values(), self, strict=True)
            heapify(heap)

    def discard(self, item: Item) -> None:
        """Remove an item if it is there."""
        if self.pop(item, None) is not None and not self:
            self._heap.clear()

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


class _ByNumber(dict[Number, Thing], Generic[Number, Thing]):
    """A :class:`Ranking` for less time: what a comparison looks at is a number, not a pair of things elsewhere."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[Number] = []

    def first(self) -> Number | None:
        """The smallest number, or None if there is none."""
        heap = self._heap
        while heap:
            if heap[0] in self:
                return heap[0]
            heappop(heap)
        return None

    def _add(self, number: Number, thing: Thing) -> None:
        self[number] = thing
        heap = self._heap
        heappush(heap, number)
        if len(heap) > _ENTRIES * len(self) + _SLACK:
            heap[:] = self
            heapify(heap)

    def discard(self, number: Number) -> None:
        """Remove what is there under a number, if anything is."""
        if self.pop(number, None) is not None and not self:
            self._heap.clear()


class Numbered(_ByNumber[int, Thing]):
    """A priority queue of things by numbers that nothing else has, smallest first.

    It is changed by ``add`` and ``discard`` only.
    """

    __slots__ = ()

    def add(self, number: int, thing: Thing) -> None:
        """Add a thing under a number that is not there."""
        self._add(number, thing)


class Multiset(_ByNumber[float, int]):
    """Numbers, each with how many there are of it, smallest first: where many are equal this takes the least time."""

    __slots__ = ()

    def add(self, number: float) -> None:
        """Add a number, there or not."""
        times = self.get(number)
        if times is None:
            self._add(number, 1)
        else:
            self[number] = times + 1

    def take(self, number: float) -> None:
        """Take a number that is there out once."""
        times = self[number]
        if times > 1:
            self[number] = times - 1
        else:
            self.discard(number)
