"""Who may be about to use a version: requests between the look-up of its name and the engine's lease.

The engine knows who runs on a version, and gives it up after the last of them. It cannot know of a request that
has found the version in the registry and is still on its way. A deletion therefore waits, once the registry
shows the version no more, until everyone who was on the way at that moment has arrived or gone elsewhere::

    request    reading() ---- resolve ---- engine.answer (leases) ----> left
    deletion            row deleted -> barrier() .......... passed ----> unload, verify

Whoever begins later finds nothing in the registry. This is the grace period of read-copy-update.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class InFlightLookup:
    """One request on its way to the engine.

    Attributes:
        version_id: what it found; None as long as that is not known.
        elsewhere: whether it turned out to need no version at all.
    """

    __slots__ = ("elsewhere", "version_id")

    def __init__(self) -> None:
        self.version_id: int | None = None
        self.elsewhere = False

    def found(self, version_id: int | None) -> None:
        """Say which version it is about; None: the base model."""
        self.version_id, self.elsewhere = version_id, version_id is None


class InFlightLookups:
    """The readers of one process; belongs to its event loop."""

    def __init__(self) -> None:
        self._active: set[InFlightLookup] = set()

    @contextmanager
    def reading(self) -> Iterator[InFlightLookup]:
        """Enclose the look-up of a version and the call that leases it in the engine."""
        reader = InFlightLookup()
        self._active.add(reader)
        try:
            yield reader
        finally:
            self._active.discard(reader)

    def barrier(self, version_ids: Collection[int]) -> "Barrier":
        """What is on its way now, and might be on its way to one of these versions."""
        return Barrier(self._active, frozenset(version_ids))


class Barrier:
    """Passed once nobody of those who were on the way can arrive at the versions any more."""

    def __init__(self, active: set[InFlightLookup], version_ids: frozenset[int]) -> None:
        self._active, self._version_ids = active, version_ids
        self._waited_for = set(active)

    @property
    def passed(self) -> bool:
        self._waited_for = {reader for reader in self._waited_for if reader in self._active and self._matters(reader)}
        return not self._waited_for

    def _matters(self, reader: InFlightLookup) -> bool:
        return not reader.elsewhere and (reader.version_id is None or reader.version_id in self._version_ids)
