"""Versions of adapters in the registry."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import VersionKey, content_digest
from app.database.tables import adapters, aliases, tenants, versions
from app.registry import Version, VersionState

_KEPT = versions.c.state != VersionState.DELETED
_SHOWN: Select[Any] = select(versions, adapters.c.slug).join(adapters, versions.c.adapter_id == adapters.c.id)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A checked upload whose blobs are stored.

    Attributes:
        config_digest, weights_digest: SHA-256 (hex) of the two files.
        config_bytes, weights_bytes: their sizes in bytes.
        manifest: JSON.
        created_by: the uploading key's id, or ``cli``.
    """

    config_digest: str
    weights_digest: str
    config_bytes: int
    weights_bytes: int
    rank: int
    manifest: Mapping[str, Any]
    created_at: datetime
    created_by: str


async def insert_version(connection: AsyncConnection, adapter_id: int, new: NewVersion) -> Version:
    """Add a version, ready, with the adapter's next number; the tenant's row must be locked (``find_tenant``).

    Raises:
        sqlalchemy.exc.IntegrityError: the adapter has these bytes already, or the tenant was not locked.
    """
    # Deleted versions count: a number means the same bytes forever.
    newest = await connection.scalar(select(func.max(versions.c.number)).where(versions.c.adapter_id == adapter_id))
    number = (newest or 0) + 1
    await connection.execute(
        insert(versions).values(
            adapter_id=adapter_id,
            number=number,
            state=VersionState.READY,
            digest=content_digest(new.config_digest, new.weights_digest),
            config_digest=new.config_digest,
            weights_digest=new.weights_digest,
            config_bytes=new.config_bytes,
            weights_bytes=new.weights_bytes,
            rank=new.rank,
            manifest=dict(new.manifest),
            created_at=new.created_at,
            created_by=new.created_by,
        )
    )
    (version,) = await _shown(connection, versions.c.adapter_id == adapter_id, versions.c.number == number)
    return version


async def find_version(connection: AsyncConnection, adapter_id: int, number: int) -> Version | None:
    """A version that is not deleted."""
    here = (versions.c.adapter_id == adapter_id, versions.c.number == number)
    return next(iter(await _shown(connection, *here)), None)


async def find_version_by_digest(connection: AsyncConnection, adapter_id: int, digest: str) -> Version | None:
    """The version of this adapter, not deleted, whose content digest (hex) this is."""
    here = (versions.c.adapter_id == adapter_id, versions.c.digest == digest)
    return next(iter(await _shown(connection, *here)), None)


async def list_versions(connection: AsyncConnection, adapter_id: int, *, below: int, limit: int) -> list[Version]:
    """Versions not deleted with a number under ``below``, newest first."""
    return await _shown(connection, versions.c.adapter_id == adapter_id, versions.c.number < below, limit=limit)


async def newest_ready(connection: AsyncConnection, adapter_id: int) -> tuple[int, int] | None:
    """Id and number of the newest version that can be served."""
    statement = select(versions.c.id, versions.c.number).where(
        versions.c.adapter_id == adapter_id, versions.c.state == VersionState.READY
    )
    row = (await connection.execute(statement.order_by(versions.c.number.desc()).limit(1))).one_or_none()
    return None if row is None else (row.id, row.number)


async def quarantine_version(connection: AsyncConnection, version_id: int, reason: str) -> tuple[str, str, int] | None:
    """Take a ready version out of service.

    Returns:
        Tenant's slug, adapter's name and version number; None if the version was not ready any more.
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
) -> list[VersionKey]:
    """Delete one version of an adapter, or all of them; returns what they were."""
    here = [versions.c.adapter_id == adapter_id, _KEPT]
    if number is not None:
        here.append(versions.c.number == number)
    statement = update(versions).where(*here).values(state=VersionState.DELETED)
    return [_key(row) for row in await connection.execute(statement.returning(versions))]


async def unused_digests(connection: AsyncConnection, digests: Collection[str]) -> tuple[str, ...]:
    """Those blobs (SHA-256, hex) that no version of any tenant uses, deleted ones aside."""
    columns = (versions.c.config_digest, versions.c.weights_digest)
    statement = select(*columns).where(_KEPT, or_(*(column.in_(digests) for column in columns)))
    used = {digest for row in await connection.execute(statement) for digest in row}
    return tuple(sorted(set(digests) - used))


async def _shown(
    connection: AsyncConnection, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[Version]:
    statement = _SHOWN.where(_KEPT, *conditions).order_by(versions.c.number.desc()).limit(limit)
    rows = (await connection.execute(statement)).all()
    names: dict[int, list[str]] = defaultdict(list)
    pointing = select(aliases.c.version_id, aliases.c.name).where(aliases.c.version_id.in_([row.id for row in rows]))
    for version_id, name in await connection.execute(pointing.order_by(aliases.c.name)):
        names[version_id].append(name)
    return [_version(row, names[row.id]) for row in rows]


def _version(row: Row[Any], names: Sequence[str]) -> Version:
    return Version(
        key=_key(row),
        adapter=row.slug,
        number=row.number,
        state=VersionState(row.state),
        state_reason=row.state_reason,
        rank=row.rank,
        created_at=row.created_at,
        created_by=row.created_by,
        aliases=tuple(names),
        manifest=row.manifest,
    )


def _key(row: Row[Any]) -> VersionKey:
    return VersionKey(row.id, row.config_digest, row.weights_digest, row.config_bytes, row.weights_bytes)
