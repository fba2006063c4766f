"""Priority queues with mutable keys: binary heaps with lazy deletion."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Key = TypeVar("Key", int, float)
Item = TypeVar("Item", int, str)
Number = TypeVar("Number", int, float)
Thing = TypeVar("Thing")

#: Maximum number of heap entries per item, and slack, before outdated entries are purged. A larger maximum purges less
#: often, but takes more of the processor's cache. See docs/decisions/0033-scheduler-data-structures.md.
_ENTRIES, _SLACK = 2, 32


class Ranking(dict[Item, Key]):
    """Priority queue with one key per item, smallest first; ties break by item.

    It reads as an unordered dict of items to keys; change it with ``set`` and ``discard`` only. These take
    logarithmic time, and ``first`` takes amortised logarithmic time. Memory is proportional to the number of items.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Key, Item]] = []

    def set(self, item: Item, key: Key) -> None:
        """Add an item or change its key."""
        old = self.get(item)
        if old == key:
            return
        self[item] = key
        heap = self._heap
        if old is not None and heap[0][0] == old and heap[0][1] == item:
            heapreplace(heap, (key, item))
            return
        heappush(heap, (key, item))
        if len(heap) > _ENTRIES * len(self) + _SLACK:
            heap[:] = zip(self.values(), self, strict=True)
            heapify(heap)

    def discard(self, item: Item) -> None:
        """Remove an item if present."""
        if self.pop(item, None) is not None and not self:
            self._heap.clear()

    def first(self) -> tuple[Key, Item] | None:
        """Return the smallest key with its item; None if the queue is empty."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self.get(entry[1]) == entry[0]:
                return entry
            heappop(heap)
        return None

    def ordered(self) -> Iterator[Item]:
        """Yield the items by key, as of the call; items that are removed or changed meanwhile are skipped."""
        heap = self._heap.copy()
        previous: tuple[Key, Item] | None = None
        while heap:
            entry = heappop(heap)
            if entry != previous and self.get(entry[1]) == entry[0]:
                yield entry[1]
            previous = entry


class _ByNumber(dict[Number, Thing], Generic[Number, Thing]):
    """Faster :class:`Ranking`: heap entries are plain numbers, so comparisons touch no other memory."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[Number] = []

    def first(self) -> Number | None:
        """Return the smallest number; None if there is none."""
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
        """Remove a number and its value if present."""
        if self.pop(number, None) is not None and not self:
            self._heap.clear()


class Numbered(_ByNumber[int, Thing]):
    """Priority queue of values by unique number, smallest first.

    Change it with ``add`` and ``discard`` only.
    """

    __slots__ = ()

    def add(self, number: int, thing: Thing) -> None:
        """Add a value under a new number."""
        self._add(number, thing)


class Multiset(_ByNumber[float, int]):
    """Counted multiset of numbers, smallest first; fastest if many are equal."""

    __slots__ = ()

    def add(self, number: float) -> None:
        """Add one occurrence of a number."""
        times = self.get(number)
        if times is None:
            self._add(number, 1)
        else:
            self[number] = times + 1

    def take(self, number: float) -> None:
        """Remove one occurrence of a number that is present."""
        times = self[number]
        if times > 1:
            self[number] = times - 1
        else:
            self.discard(number)
