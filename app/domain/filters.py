"""What a listing of versions may be narrowed to, as plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.adapters import VersionState


@dataclass(frozen=True, slots=True)
class VersionFilter:
    """What a version must be like to be listed; nothing given: any version.

    Attributes:
        labels: every one of these names, with this value.
        base: the name or the digest (SHA-256, hex) of the base it was checked against.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    state: VersionState | None = None
    base: str | None = None


#: Every version.
ANY = VersionFilter()
