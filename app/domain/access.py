"""Tenants, API keys and the authenticated caller."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from app.domain.limits.limits import UNLIMITED, Limits
from app.domain.quotas import UNLIMITED as NO_QUOTA
from app.domain.quotas import Quota
from app.domain.restrictions import UNRESTRICTED, Restrictions
from app.domain.searches import Sort


class Scope(StrEnum):
    """Permissions of a key.

    ``metrics`` and ``admin`` are for platform keys. ``admin`` includes every scope but ``inference``. ``keys:write`` is
    for keys of the caller's own tenant.
    """

    INFERENCE = "inference"
    BATCH = "batch"
    ADAPTERS_READ = "adapters:read"
    ADAPTERS_WRITE = "adapters:write"
    USAGE_READ = "usage:read"
    KEYS_WRITE = "keys:write"
    METRICS = "metrics"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity behind a valid API key.

    Attributes:
        tenant_id, tenant_slug: the key's tenant; None for a platform key.
        salt: the tenant's secret for the engine's prefix cache; empty for a platform key, which cannot run inference.
        weight: the tenant's share of the engine, relative to other tenants.
        limits: limits of the tenant, over all its keys; the key's limits are in ``restrictions``.
        session: HMAC of the token of the session in which the key is used; None if the request has the key itself.
    """

    key_id: str
    tenant_id: int | None
    tenant_slug: str | None
    scopes: frozenset[Scope]
    salt: str = field(repr=False)
    weight: float = 1.0
    limits: Limits = UNLIMITED
    restrictions: Restrictions = UNRESTRICTED
    session: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A business unit.

    Its weight sets its share of the engine: while both have a backlog, weight 2 gets twice the tokens of weight 1.
    """

    id: int
    slug: str
    name: str
    disabled: bool
    created_at: datetime
    quota: Quota = NO_QUOTA
    weight: float = 1.0
    limits: Limits = UNLIMITED


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Filter of a list of keys.

    Attributes:
        tenant_id: row id of the owner; None for platform keys.
        all_owners: True for keys of the platform and of all tenants that are not deleted.
        text: part of an id, a name or an owner.
        working: whether the key is neither revoked nor expired nor of a disabled tenant; None for both.
        sort: order of the list; keys of one name are ordered by id.
    """

    tenant_id: int | None = None
    all_owners: bool = False
    text: str | None = None
    working: bool | None = None
    sort: Sort = Sort.CREATED


@dataclass(frozen=True, slots=True)
class Key:
    """Public metadata of an API key, without the secret.

    Attributes:
        tenant: slug of the owner; None for a platform key.
        lifetime_s: requested seconds from creation to expiry; a rotation applies the same lifetime again.
        expires_at: time of expiry; after a rotation earlier than ``lifetime_s`` implies.
        owner: label of the person or application that uses the key; None if it was not given.
        last_used_at: time of its last use, about a minute behind; None if it was never used.
    """

    id: str
    tenant: str | None
    name: str
    scopes: tuple[Scope, ...]
    lifetime_s: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    restrictions: Restrictions = UNRESTRICTED
    owner: str | None = None
    last_used_at: datetime | None = None
