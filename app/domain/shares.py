"""Shares of adapters between tenants, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Share:
    """Permission for another tenant to read an adapter and use it for inference.

    Attributes:
        recipient: slug of the recipient, as given.
        recipient_exists: True if a tenant receives the share through this slug; visible to platform keys only.
        created_by: id of the key that shared it.
    """

    recipient: str
    recipient_exists: bool
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class SharedAdapter:
    """Another tenant's adapter, in the view of a recipient.

    Attributes:
        owner: slug of the tenant that shares it.
        versions: numbers of the versions that the recipient can request, newest first.
        aliases: alias -> version number -> weight of its traffic, for these versions.
    """

    id: int
    owner: str
    name: str
    created_at: datetime
    shared_at: datetime
    versions: tuple[int, ...]
    aliases: Mapping[str, Mapping[int, int]]

    @property
    def full_name(self) -> str:
        """Name by which the recipient requests the adapter."""
        return f"{self.owner}/{self.name}"
