"""Tenants, their API keys, and the caller that a key stands for."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from app.domain.limits.limits import UNLIMITED, Limits
from app.domain.quotas import UNLIMITED as NO_QUOTA
from app.domain.quotas import Quota
from app.domain.restrictions import UNRESTRICTED, Restrictions


class Scope(StrEnum):
    """What a key may do. ``metrics`` and ``admin`` are for platform keys; ``admin`` includes all but ``inference``."""

    INFERENCE = "inference"
    ADAPTERS_READ = "adapters:read"
    ADAPTERS_WRITE = "adapters:write"
    USAGE_READ = "usage:read"
    METRICS = "metrics"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a working key speaks for.

    Attributes:
        tenant_id, tenant_slug: None for a platform key.
        salt: the tenant's secret for the engine's prefix cache; empty for a platform key, which never infers.
        weight: the tenant's share of the engine against that of others.
        limits: of all the tenant's keys together; the key's own are among its restrictions.
    """

    key_id: str
    tenant_id: int | None
    tenant_slug: str | None
    scopes: frozenset[Scope]
    salt: str = field(repr=False)
    weight: float = 1.0
    limits: Limits = UNLIMITED
    restrictions: Restrictions = UNRESTRICTED


@dataclass(frozen=True, slots=True)
class Tenant:
    """A business unit; of the engine, one of weight 2 gets twice the tokens of one of weight 1, while both wait."""

    id: int
    slug: str
    name: str
    disabled: bool
    created_at: datetime
    quota: Quota = NO_QUOTA
    weight: float = 1.0
    limits: Limits = UNLIMITED


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
    restrictions: Restrictions = UNRESTRICTED
