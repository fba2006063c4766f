"""Storage quotas of tenants and their usage, as frozen data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on the resources that one tenant keeps; None means no limit.

    Attributes:
        versions: versions over all its adapters, without deleted and rejected ones.
        bytes: size of the files of these versions.
        rank: largest rank of any version.
        pinned_slots: versions that it may pin into the engine.
    """

    adapters: int | None = None
    versions: int | None = None
    bytes: int | None = None
    rank: int | None = None
    pinned_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a tenant keeps, or the difference that a change makes; see :class:`Quota` for the attributes."""

    adapters: int = 0
    versions: int = 0
    bytes: int = 0
    rank: int = 0
    pinned_slots: int = 0


#: Default quota of a tenant.
UNLIMITED = Quota()
