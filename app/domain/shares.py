"""What sharing an adapter is made of, as plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Share:
    """That another tenant may read an adapter and infer with it.

    Attributes:
        recipient: the slug as it was given.
        recipient_exists: whether a tenant has it through this slug; only a platform key may know.
        created_by: id of the key that shared it.
    """

    recipient: str
    recipient_exists: bool
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class SharedAdapter:
    """Another tenant's adapter, as those see it with whom it is shared.

    Attributes:
        owner: slug of the tenant that shares it.
        versions: numbers of those that can be asked for, newest first.
        aliases: alias -> version number -> weight of the traffic it gets, of those versions.
    """

    id: int
    owner: str
    name: str
    created_at: datetime
    shared_at: datetime
    versions: tuple[int, ...]
    aliases: Mapping[str, Mapping[int, int]]
