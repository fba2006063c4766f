"""Adapters and their versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from adapters.errors import Reason
from adapters.identity import VersionKey
from app.domain.limits.limits import UNLIMITED, Limits


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
