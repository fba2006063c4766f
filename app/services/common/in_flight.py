"""Track requests that have resolved a version but hold no engine lease yet (an RCU read section).

The engine knows which requests run on a version, and drops the version after the last of them. It does not know of
requests that have resolved the version and have not reached the engine yet. A deletion therefore waits for them.
It starts to wait once the registry no longer shows the version::

    request    lookup() ---- resolve ---- engine.answer (leases) ----> left
    deletion            row deleted -> barrier() .......... passed ----> unload, verify

Later requests do not find the version in the registry. The wait is the grace period of read-copy-update.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class InFlightLookup:
    """One request between name lookup and engine lease.

    Attributes:
        version_id: id of the resolved version; None while it is unknown.
        is_base: True if the name resolved to the base model, which needs no version.
    """

    __slots__ = ("is_base", "version_id")

    def __init__(self) -> None:
        self.version_id: int | None = None
        self.is_base = False

    def resolved(self, version_id: int | None) -> None:
        """Record the resolved version; None for the base model."""
        self.version_id, self.is_base = version_id, version_id is None


class InFlightLookups:
    """In-flight lookups of one process. Use it from one event loop."""

    def __init__(self) -> None:
        self._active: set[InFlightLookup] = set()

    @contextmanager
    def lookup(self) -> Iterator[InFlightLookup]:
        """Read section: enclose the lookup of a version and the call that leases it in the engine."""
        lookup = InFlightLookup()
        self._active.add(lookup)
        try:
            yield lookup
        finally:
            self._active.discard(lookup)

    def barrier(self, version_ids: Collection[int]) -> "Barrier":
        """Start a grace period for the current lookups that may lead to one of these versions."""
        return Barrier(self._active, frozenset(version_ids))


class Barrier:
    """Grace period: passed once none of its lookups can still reach the versions."""

    def __init__(self, active: set[InFlightLookup], version_ids: frozenset[int]) -> None:
        self._active, self._version_ids = active, version_ids
        self._waited_for = set(active)

    @property
    def passed(self) -> bool:
        self._waited_for = {lookup for lookup in self._waited_for if lookup in self._active and self._matters(lookup)}
        return not self._waited_for

    def _matters(self, lookup: InFlightLookup) -> bool:
        return not lookup.is_base and (lookup.version_id is None or lookup.version_id in self._version_ids)
