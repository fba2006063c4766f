"""Filters of version listings, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.adapters import VersionState


@dataclass(frozen=True, slots=True)
class VersionFilter:
    """Filter of versions; the default matches every version.

    Attributes:
        labels: names and values that a version must have, all of them.
        base: name or digest (SHA-256, hex) of the base that the version was checked against.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    state: VersionState | None = None
    base: str | None = None


#: Matches every version.
ANY = VersionFilter()
