"""What the registry holds, as plain frozen data: what the services return and the routers show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from adapters.errors import Reason
from adapters.identity import VersionKey
from app.domain.limits.limits import (
    UNLIMITED,
    Limits,
)
from app.domain.quotas import UNLIMITED as NO_QUOTA
from app.domain.quotas import Quota
from app.domain.restrictions import (
    UNRESTRICTED,
    Restrictions,
)

Item = TypeVar("Item")


class Scope(StrEnum):
    """What a key may do. ``metrics`` and ``admin`` are for platform keys; ``admin`` includes all but ``inference``."""

    INFERENCE = "inference"
    ADAPTERS_READ = "adapters:read"
    ADAPTERS_WRITE = "adapters:write"
    USAGE_READ = "usage:read"
    METRICS = "metrics"
    ADMIN = "admin"


class VersionState(StrEnum):
    """Only ``ready`` is served.

    ``validating`` is being tried on the engine, ``rejected`` failed that, ``quarantined`` failed to load later,
    ``retired`` is kept, ``deleted`` is a tombstone.
    """

    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
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


@dataclass(frozen=True, slots=True)
class Adapter:
    """A tenant's named line of versions.

    Attributes:
        versions: numbers of the versions not deleted, newest first.
        aliases: alias -> version number -> weight of the traffic it gets.
        limits: of all its callers together.
    """

    id: int
    name: str
    tenant: str
    created_at: datetime
    versions: tuple[int, ...]
    aliases: Mapping[str, Mapping[int, int]]
    limits: Limits = UNLIMITED


@dataclass(frozen=True, slots=True)
class Alias:
    """A movable name for one version, or for several that share its traffic.

    Attributes:
        adapter: the adapter's name.
        revision: grows with every change, also over a removal; its ETag.
        targets: version number -> weight, newest first.
        canary_id: the canary that moves it just now, if one does.
    """

    adapter: str
    name: str
    revision: int
    targets: Mapping[int, int]
    canary_id: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AliasChange:
    """One row of an alias's history.

    Attributes:
        revision: the alias's since then.
        action: move, split, rollback, publish, remove, or what a canary did.
        targets: version number -> weight; None: the alias was removed.
    """

    revision: int
    at: datetime
    actor: str
    action: str
    targets: Mapping[int, int] | None
    reason: str | None


class CanaryState(StrEnum):
    """Only ``running`` moves the alias; the other three are ends."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that takes over an alias step by step, unless it does worse than the one before.

    Attributes:
        baseline, candidate: version numbers.
        baseline_id, candidate_id: the rows of those.
        policy: see :class:`app.services.canary_policy.Policy`, as JSON.
        step: index of the step that it is in, or ended in.
        revision: the alias's in that step.
        reason: why it ended, with the figures of its last step; JSON.
    """

    id: int
    adapter_id: int
    alias: str
    baseline: int
    candidate: int
    baseline_id: int
    candidate_id: int
    policy: Mapping[str, Any]
    step: int
    revision: int
    step_started_at: datetime
    state: CanaryState
    reason: Mapping[str, Any] | None
    created_at: datetime
    created_by: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a version comes from and what it was checked against. None: published before this was kept.

    Attributes:
        source: ``kind`` (upload, archive, import, merge) and what that kind knows, e.g. a merge's recipe.
        uploaded_from: the client's address.
        training_run: a link of the uploader's.
        target_modules: the linear layers it changes.
        parameters: number of values in its tensors.
        dtype: of its tensors, as safetensors names it.
        base_digest: SHA-256 (hex), see :mod:`app.served_base`.
    """

    source: Mapping[str, Any]
    uploaded_from: str | None = None
    training_run: str | None = None
    peft_version: str | None = None
    alpha: float | None = None
    target_modules: tuple[str, ...] | None = None
    parameters: int | None = None
    dtype: str | None = None
    base_name: str | None = None
    base_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """An immutable upload.

    Attributes:
        key: the engine's identity: row id, digests (SHA-256, hex) and sizes (bytes) of the two files that it reads.
        uploaded: the two files as they were uploaded; their digest is the version's. The key itself, if these are what
            the engine reads.
        adapter: the adapter's name.
        state_reason: why it is not ready, if it is not.
        created_by: id of the key that uploaded it, or ``cli``.
        aliases: names that point here, sorted.
        manifest: the checked ``adapter_config.json``, as JSON.
        card: free text, to be shown as text only.
        defaults: what requests get that say nothing else, see :mod:`app.services.prompts.defaults`.
        warnings: what the upload says that has no effect.
    """

    key: VersionKey
    uploaded: VersionKey
    adapter: str
    number: int
    state: VersionState
    state_reason: str | None
    rank: int
    created_at: datetime
    created_by: str
    aliases: tuple[str, ...]
    manifest: Mapping[str, Any]
    provenance: Provenance
    labels: Mapping[str, str]
    card: str
    defaults: Mapping[str, Any]
    warnings: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The one version that a model name means just now.

    Attributes:
        owner: slug of the tenant that owns it: the caller, or who shares it with the caller.
        alias: the alias that led here; None if the caller named a number.
        revision: the alias's revision at that moment.
        canary_id: the canary that the alias is in.
        defaults: see :class:`Version`.
        adapter_id: the adapter's row.
        limits: the adapter's.
    """

    key: VersionKey
    adapter: str
    number: int
    owner: str
    alias: str | None
    revision: int | None
    canary_id: int | None
    defaults: Mapping[str, Any]
    adapter_id: int = 0
    limits: Limits = UNLIMITED
