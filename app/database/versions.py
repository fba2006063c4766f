"""Versions of adapters in the registry."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import Reason
from adapters.geometry import HEAD_MODULE
from adapters.identity import FilePair, VersionKey
from app.database.filters import matching
from app.database.keys import DISPLAY_NAME, is_key_of
from app.database.tables import adapters, alias_targets, keys, pins, tenants, version_labels, versions
from app.domain.adapters import Provenance, Version, VersionState
from app.domain.filters import ANY, VersionFilter

_KEPT = versions.c.state != VersionState.DELETED
#: A rejected version is listed with its reason, but its bytes are not kept.
_HAS_BYTES = versions.c.state.not_in([VersionState.DELETED, VersionState.REJECTED])
#: Names of keys of the owner only: those of the platform are no business of tenants.
_OWN_KEY = is_key_of(versions.c.created_by, adapters.c.tenant_id)
_SHOWN: Select[Any] = (
    select(
        versions,
        adapters.c.slug,
        DISPLAY_NAME.label("creator"),
        exists().where(pins.c.version_id == versions.c.id).label("pinned"),
    )
    .join(adapters, versions.c.adapter_id == adapters.c.id)
    .join(keys, _OWN_KEY, isouter=True)
)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A validated upload whose blobs are stored.

    Attributes:
        config_digest, weights_digest: SHA-256 (hex) of the two files as uploaded.
        config_bytes, weights_bytes: their sizes in bytes.
        normal: the two files that the engine reads; None if it reads the uploaded ones.
        manifest: the checked ``adapter_config.json``, as JSON.
        created_by: id of the key that uploaded it, or ``cli``.
        warnings: settings of the upload that have no effect.
    """

    config_digest: str
    weights_digest: str
    config_bytes: int
    weights_bytes: int
    rank: int
    manifest: Mapping[str, Any]
    created_at: datetime
    created_by: str
    provenance: Provenance
    labels: Mapping[str, str] = field(default_factory=dict)
    card: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[Reason, ...] = ()
    normal: FilePair | None = None

    @property
    def uploaded(self) -> FilePair:
        return FilePair(self.config_digest, self.weights_digest, self.config_bytes, self.weights_bytes)

    @property
    def stored_bytes(self) -> int:
        """Size of all its files in bytes; a file that both pairs contain counts once."""
        uploaded, normal = self.uploaded, self.normal or self.uploaded
        sizes = {pair.config_digest: pair.config_bytes for pair in (uploaded, normal)}
        sizes |= {pair.weights_digest: pair.weights_bytes for pair in (uploaded, normal)}
        return sum(sizes.values())


async def insert_version(connection: AsyncConnection, adapter_id: int, new: NewVersion) -> Version:
    """Add a version in the state ``validating`` with the adapter's next number.

    The tenant's row must be locked (``find_tenant``).

    Raises:
        sqlalchemy.exc.IntegrityError: the adapter has these bytes already, or the tenant was not locked.
    """
    # Deleted versions count, because a number must never refer to other bytes.
    newest = await connection.scalar(select(func.max(versions.c.number)).where(versions.c.adapter_id == adapter_id))
    number = (newest or 0) + 1
    statement = insert(versions).values(
        adapter_id=adapter_id,
        number=number,
        state=VersionState.VALIDATING,
        **_files(new.uploaded, new.normal or new.uploaded),
        rank=new.rank,
        manifest=dict(new.manifest),
        created_at=new.created_at,
        created_by=new.created_by,
        card=new.card,
        defaults=dict(new.defaults),
        warnings=[asdict(warning) for warning in new.warnings],
        lora_head=HEAD_MODULE in (new.provenance.target_modules or ()),
        **_columns(new.provenance),
    )
    version_id: int = (await connection.execute(statement.returning(versions.c.id))).scalar_one()
    await set_labels(connection, version_id, new.labels)
    (version,) = await _shown(connection, versions.c.id == version_id)
    return version


def _files(uploaded: FilePair, normal: FilePair) -> dict[str, Any]:
    """Columns of both file pairs; a value that both have is stored once."""
    columns: dict[str, Any] = {"digest": uploaded.digest, **asdict(normal)}
    if uploaded.digest != normal.digest:
        columns["normal_digest"] = normal.digest
    for name in ("config", "weights"):
        digest, size = getattr(uploaded, f"{name}_digest"), getattr(uploaded, f"{name}_bytes")
        if digest != columns[f"{name}_digest"]:
            columns |= {f"uploaded_{name}_digest": digest, f"uploaded_{name}_bytes": size}
    return columns


def _columns(provenance: Provenance) -> dict[str, Any]:
    modules = provenance.target_modules
    return {
        "base_name": provenance.base_name,
        "base_digest": provenance.base_digest,
        "alpha": provenance.alpha,
        "target_modules": None if modules is None else list(modules),
        "parameters": provenance.parameters,
        "weights_dtype": provenance.dtype,
        "peft_version": provenance.peft_version,
        "source": dict(provenance.source),
        "uploaded_from": provenance.uploaded_from,
        "training_run": provenance.training_run,
    }


async def set_labels(connection: AsyncConnection, version_id: int, labels: Mapping[str, str]) -> None:
    """Replace a version's labels."""
    await connection.execute(delete(version_labels).where(version_labels.c.version_id == version_id))
    if labels:
        rows = [{"version_id": version_id, "name": name, "value": value} for name, value in labels.items()]
        await connection.execute(insert(version_labels), rows)


async def describe_version(
    connection: AsyncConnection, version_id: int, *, card: str, training_run: str | None, defaults: Mapping[str, Any]
) -> None:
    """Replace the description of a version: card, training run and defaults; not its labels."""
    values = {"card": card, "training_run": training_run, "defaults": dict(defaults)}
    await connection.execute(update(versions).where(versions.c.id == version_id).values(**values))


async def settle_version(
    connection: AsyncConnection, version_id: int, state: VersionState, reason: str | None = None
) -> bool:
    """End a version's validation; False if it is no longer ``validating``."""
    conditions = (versions.c.id == version_id, versions.c.state == VersionState.VALIDATING)
    statement = update(versions).where(*conditions).values(state=state, state_reason=reason)
    return (await connection.execute(statement)).rowcount > 0


async def unsettled_versions(connection: AsyncConnection, *, before: datetime) -> list[tuple[str, Version]]:
    """List versions whose validation began before a moment and has not ended, with the slugs of their tenants."""
    owners = (
        select(versions.c.id, tenants.c.slug)
        .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(versions.c.state == VersionState.VALIDATING, versions.c.created_at < before)
    )
    slugs = {row.id: row.slug for row in await connection.execute(owners)}
    unfinished = await _shown(connection, versions.c.id.in_(slugs)) if slugs else []
    return [(slugs[version.key.version_id], version) for version in unfinished]


async def find_version(connection: AsyncConnection, adapter_id: int, number: int) -> Version | None:
    """Find a version that is not deleted."""
    conditions = (versions.c.adapter_id == adapter_id, versions.c.number == number)
    return next(iter(await _shown(connection, *conditions)), None)


async def find_version_by_digest(connection: AsyncConnection, adapter_id: int, digest: str) -> Version | None:
    """Find a version of this adapter by its content digest (hex); deleted and rejected ones are excluded."""
    conditions = (versions.c.adapter_id == adapter_id, versions.c.digest == digest, _HAS_BYTES)
    return next(iter(await _shown(connection, *conditions)), None)


async def list_versions(
    connection: AsyncConnection, adapter_id: int, *, below: int, limit: int, only: VersionFilter = ANY
) -> list[Version]:
    """List versions that are not deleted with a number under ``below``, newest first."""
    conditions = (versions.c.adapter_id == adapter_id, versions.c.number < below)
    return await _shown(connection, *conditions, *matching(only), limit=limit)


async def newest_ready(connection: AsyncConnection, adapter_id: int) -> tuple[int, int] | None:
    """Return id and number of the newest version that can be served."""
    statement = select(versions.c.id, versions.c.number).where(
        versions.c.adapter_id == adapter_id, versions.c.state == VersionState.READY
    )
    row = (await connection.execute(statement.order_by(versions.c.number.desc()).limit(1))).one_or_none()
    return None if row is None else (row.id, row.number)


async def quarantine_version(connection: AsyncConnection, version_id: int, reason: str) -> tuple[str, str, int] | None:
    """Quarantine a ready version.

    Returns:
        Slug of the tenant, name of the adapter and version number; None if the version was no longer ready.
    """
    statement = (
        update(versions)
        .where(versions.c.id == version_id, versions.c.state == VersionState.READY)
        .values(state=VersionState.QUARANTINED, state_reason=reason)
    )
    if (await connection.execute(statement)).rowcount == 0:
        return None
    names = (
        select(tenants.c.slug, adapters.c.slug, versions.c.number)
        .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(versions.c.id == version_id)
    )
    tenant, adapter, number = (await connection.execute(names)).one()
    return tenant, adapter, number


async def mark_versions_deleted(
    connection: AsyncConnection, adapter_id: int, number: int | None = None
) -> list[tuple[VersionKey, VersionKey]]:
    """Mark one version of an adapter as deleted, or all of them.

    Returns:
        For each version, the files that the engine read and the uploaded files.
    """
    conditions = [versions.c.adapter_id == adapter_id, _KEPT]
    if number is not None:
        conditions.append(versions.c.number == number)
    statement = update(versions).where(*conditions).values(state=VersionState.DELETED)
    return [(_key(row), _uploaded(row)) for row in await connection.execute(statement.returning(versions))]


async def _shown(
    connection: AsyncConnection, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[Version]:
    statement = _SHOWN.where(_KEPT, *conditions).order_by(versions.c.number.desc()).limit(limit)
    rows = (await connection.execute(statement)).all()
    ids = [row.id for row in rows]
    names: dict[int, list[str]] = defaultdict(list)
    pointing = select(alias_targets.c.version_id, alias_targets.c.alias).where(alias_targets.c.version_id.in_(ids))
    for version_id, name in await connection.execute(pointing.order_by(alias_targets.c.alias)):
        names[version_id].append(name)
    labels: dict[int, dict[str, str]] = defaultdict(dict)
    labelled = select(version_labels).where(version_labels.c.version_id.in_(ids)).order_by(version_labels.c.name)
    for version_id, name, value in await connection.execute(labelled):
        labels[version_id][name] = value
    return [_version(row, names[row.id], labels[row.id]) for row in rows]


def _version(row: Row[Any], names: Sequence[str], labels: Mapping[str, str]) -> Version:
    return Version(
        key=_key(row),
        uploaded=_uploaded(row),
        adapter=row.slug,
        number=row.number,
        state=VersionState(row.state),
        state_reason=row.state_reason,
        rank=row.rank,
        created_at=row.created_at,
        created_by=row.created_by,
        creator=row.creator,
        pinned=row.pinned,
        aliases=tuple(names),
        manifest=row.manifest,
        provenance=_provenance(row),
        labels=labels,
        card=row.card,
        defaults=row.defaults,
        warnings=tuple(Reason.read(warning) for warning in row.warnings),
    )


def _provenance(row: Row[Any]) -> Provenance:
    return Provenance(
        source=row.source,
        uploaded_from=row.uploaded_from,
        training_run=row.training_run,
        peft_version=row.peft_version,
        alpha=row.alpha,
        target_modules=None if row.target_modules is None else tuple(row.target_modules),
        parameters=row.parameters,
        dtype=row.weights_dtype,
        base_name=row.base_name,
        base_digest=row.base_digest,
    )


def _key(row: Row[Any]) -> VersionKey:
    return VersionKey(row.id, row.config_digest, row.weights_digest, row.config_bytes, row.weights_bytes)


def _uploaded(row: Row[Any]) -> VersionKey:
    return VersionKey(
        row.id,
        row.uploaded_config_digest or row.config_digest,
        row.uploaded_weights_digest or row.weights_digest,
        row.config_bytes if row.uploaded_config_bytes is None else row.uploaded_config_bytes,
        row.weights_bytes if row.uploaded_weights_bytes is None else row.uploaded_weights_bytes,
    )
