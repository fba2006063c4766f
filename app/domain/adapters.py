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
    """Life cycle of a version; only ``ready`` is served.

    - ``validating``: the smoke test on the engine has not ended.
    - ``rejected``: the smoke test failed.
    - ``quarantined``: a later load into the engine failed.
    - ``retired``: out of service, kept.
    - ``deleted``: a tombstone.
    """

    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"
    RETIRED = "retired"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A named series of versions that one tenant owns.

    Attributes:
        versions: numbers of the versions that are not deleted, newest first.
        aliases: alias -> version number -> weight of its traffic.
        limits: limits over all callers together.
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
    """Origin of a version and the base it was checked against.

    A field is None on versions published before the field was recorded.

    Attributes:
        source: ``kind`` (upload, archive, import, merge) and the details of that kind, e.g. the recipe of a merge.
        uploaded_from: network address of the client.
        training_run: link given by the uploader.
        target_modules: linear layers that the adapter changes.
        parameters: number of values in its tensors.
        dtype: dtype of its tensors, as safetensors names it.
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
        key: identity for the engine: row id, digests (SHA-256, hex) and sizes (bytes) of the two files that it reads.
        uploaded: the two files as uploaded, whose digest is the digest of the version. Equal to ``key`` if the
            engine reads the uploaded files.
        adapter: name of the adapter.
        state_reason: reason why the version is not ready; None if it is.
        created_by: id of the key that uploaded it, or ``cli``.
        creator: owner or name of that key, if it is a key of the tenant.
        aliases: aliases that point to this version, sorted.
        manifest: the checked ``adapter_config.json``, as JSON.
        card: free text; display it as plain text only.
        defaults: defaults for request fields, see :mod:`app.services.prompts.defaults`.
        warnings: settings of the upload that have no effect.
        pinned: True if it keeps an engine slot, see :mod:`app.domain.pins`.
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
    creator: str | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The version to which a model name currently resolves.

    Attributes:
        owner: slug of the owning tenant: the caller, or the tenant that shares the adapter with the caller.
        alias: alias in the name; None if the caller gave a version number.
        revision: revision of the alias at that moment.
        canary_id: canary that runs on the alias.
        defaults: see :class:`Version`.
        adapter_id: row id of the adapter.
        limits: limits of the adapter.
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
