"""What the registry holds, as plain frozen data: what the services return and the routers show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from adapters.identity import VersionKey

Item = TypeVar("Item")


class Scope(StrEnum):
    """What a key may do."""

    INFERENCE = "inference"
    ADAPTERS_READ = "adapters:read"
    ADAPTERS_WRITE = "adapters:write"
    USAGE_READ = "usage:read"
    ADMIN = "admin"


class VersionState(StrEnum):
    """Only ``ready`` is served; ``quarantined`` failed to load, ``retired`` is kept, ``deleted`` is a tombstone."""

    READY = "ready"
    QUARANTINED = "quarantined"
    RETIRED = "retired"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list.

    Attributes:
        data: at most ``limit`` items.
        next_cursor: opaque; asks for the page after this one. None on the last page.
    """

    data: tuple[Item, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a working key speaks for.

    Attributes:
        tenant_id, tenant_slug: None for a platform key.
        salt: the tenant's secret for the engine's prefix cache; empty for a platform key, which never infers.
    """

    key_id: str
    tenant_id: int | None
    tenant_slug: str | None
    scopes: frozenset[Scope]
    salt: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A business unit."""

    id: int
    slug: str
    name: str
    disabled: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Key:
    """What may be shown of an API key at any time.

    Attributes:
        tenant: the owner's slug; None for a platform key.
        lifetime_s: seconds from creation to expiry that its maker asked for; a rotation repeats it.
        expires_at: when it ends; earlier than the lifetime says once it has been rotated.
    """

    id: str
    tenant: str | None
    name: str
    scopes: tuple[Scope, ...]
    lifetime_s: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Adapter:
    """A tenant's named line of versions.

    Attributes:
        versions: numbers of the versions not deleted, newest first.
        aliases: alias -> version number.
    """

    id: int
    name: str
    tenant: str
    created_at: datetime
    versions: tuple[int, ...]
    aliases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Version:
    """An immutable upload.

    Attributes:
        key: the engine's identity: row id, digests (SHA-256, hex) and sizes (bytes) of the two files.
        adapter: the adapter's name.
        state_reason: why it is not ready, if it is not.
        created_by: id of the key that uploaded it, or ``cli``.
        aliases: names that point here, sorted.
        manifest: the checked ``adapter_config.json``, as JSON.
    """

    key: VersionKey
    adapter: str
    number: int
    state: VersionState
    state_reason: str | None
    rank: int
    created_at: datetime
    created_by: str
    aliases: tuple[str, ...]
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The one version that a model name means just now.

    Attributes:
        alias: the alias that led here; None if the caller named a number.
    """

    key: VersionKey
    adapter: str
    number: int
    alias: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """What a deletion leaves to clean up.

    Attributes:
        keys: versions that the engine and the disk cache may still hold.
        digests: blobs (SHA-256, hex) that no remaining version of any tenant uses.
    """

    keys: tuple[VersionKey, ...]
    digests: tuple[str, ...]
