"""How much a tenant may keep, and what it does, as plain frozen data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """How much one tenant may keep; None: no limit.

    Attributes:
        versions: of all its adapters together; deleted and rejected ones do not count.
        bytes: of both files of those versions.
        rank: largest of any one version.
        pinned_slots: versions that it may pin into the engine.
    """

    adapters: int | None = None
    versions: int | None = None
    bytes: int | None = None
    rank: int | None = None
    pinned_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant keeps, or what one change would add to that; the attributes are those of :class:`Quota`."""

    adapters: int = 0
    versions: int = 0
    bytes: int = 0
    rank: int = 0
    pinned_slots: int = 0


#: A tenant's until somebody sets another.
UNLIMITED = Quota()
