"""Files of tenants in the registry."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.batch_tables import UNFINISHED_BATCH
from app.database.tables import batch_chunks, batches, deletions, file_parts, file_uploads, files, tenants
from app.domain.files import FileUploadState, FileUsage, Purpose, StoredFile

_LIVE = files.c.deleted_at.is_(None)
_PENDING = file_uploads.c.state == FileUploadState.PENDING
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Place of a file in the order of a list."""

    created_at: datetime
    id: str


async def insert_file(connection: AsyncConnection, file: StoredFile) -> None:
    """Add a file whose blob is in the store."""
    await connection.execute(
        insert(files).values(
            id=file.id,
            tenant_id=file.tenant_id,
            purpose=file.purpose,
            filename=file.filename,
            bytes=file.bytes,
            sha256=file.sha256,
            digest=file.digest,
            created_at=file.created_at,
            created_by=file.created_by,
            expires_at=file.expires_at,
        )
    )


async def find_file(
    connection: AsyncConnection, tenant_id: int, file_id: str, *, lock: bool = False
) -> StoredFile | None:
    """Find a file of this tenant that is not deleted.

    Args:
        lock: True to lock its row until the transaction ends. A transaction that lets a batch read the file takes this
            lock, so that the file cannot be deleted at the same time.
    """
    statement = select(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id, _LIVE)
    if lock:
        # Weaker than FOR UPDATE: does not block inserts of rows that reference the file.
        statement = statement.with_for_update(key_share=True)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _file(row)


async def is_live(connection: AsyncConnection, file_id: str) -> bool:
    """Return whether a file of any tenant exists and is not deleted."""
    return bool(await connection.scalar(select(exists().where(files.c.id == file_id, _LIVE))))


async def owner_of(connection: AsyncConnection, file_id: str) -> str | None:
    """Return the slug of a file's tenant."""
    statement = select(tenants.c.slug).join_from(files, tenants, files.c.tenant_id == tenants.c.id)
    slug: str | None = await connection.scalar(statement.where(files.c.id == file_id))
    return slug


async def find_position(connection: AsyncConnection, tenant_id: int, file_id: str) -> FilePosition | None:
    """Find the place in the tenant's list of a file, which may be deleted."""
    statement = select(files.c.created_at, files.c.id).where(files.c.id == file_id, files.c.tenant_id == tenant_id)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else FilePosition(row.created_at, row.id)


async def list_files(
    connection: AsyncConnection,
    tenant_id: int,
    *,
    purpose: str | None,
    after: FilePosition | None,
    ascending: bool,
    limit: int,
) -> list[StoredFile]:
    """List a tenant's files by the time of their creation.

    Args:
        after: position of the last file on the page before.
        ascending: True for the oldest first.
    """
    columns = (files.c.created_at, files.c.id)
    statement = select(files).where(files.c.tenant_id == tenant_id, _LIVE).limit(limit)
    if purpose is not None:
        statement = statement.where(files.c.purpose == purpose)
    if after is not None:
        statement = statement.where(_beyond(after, ascending=ascending))
    order = columns if ascending else tuple(column.desc() for column in columns)
    return [_file(row) for row in await connection.execute(statement.order_by(*order))]


async def unfinished_reader(connection: AsyncConnection, file_id: str) -> str | None:
    """Return the id of an unfinished batch that reads a file, if there is one."""
    statement = select(batches.c.id).where(batches.c.input_file_id == file_id, UNFINISHED_BATCH)
    identity: str | None = await connection.scalar(statement.order_by(batches.c.created_at).limit(1))
    return identity


async def has_unfinished_batches(connection: AsyncConnection, tenant_id: int) -> bool:
    return bool(await connection.scalar(select(exists().where(batches.c.tenant_id == tenant_id, UNFINISHED_BATCH))))


async def mark_file_deleted(connection: AsyncConnection, file_id: str, *, at: datetime) -> bool:
    """Mark a file as deleted; False if it was marked before."""
    statement = update(files).where(files.c.id == file_id, _LIVE).values(deleted_at=at)
    return (await connection.execute(statement)).rowcount == 1


async def live_files(connection: AsyncConnection, tenant_id: int) -> list[StoredFile]:
    """Return all files of a tenant that are not deleted, and lock their rows until the transaction ends."""
    statement = select(files).where(files.c.tenant_id == tenant_id, _LIVE).order_by(files.c.id)
    return [_file(row) for row in await connection.execute(statement.with_for_update(key_share=True))]


async def expired_files(connection: AsyncConnection, *, now: datetime, limit: int) -> list[tuple[str, StoredFile]]:
    """List expired files that no unfinished batch reads, with the slugs of their tenants."""
    read = exists().where(batches.c.input_file_id == files.c.id, UNFINISHED_BATCH)
    statement = (
        select(files, tenants.c.slug)
        .join(tenants, files.c.tenant_id == tenants.c.id)
        .where(_LIVE, files.c.expires_at <= now, ~read)
        .order_by(files.c.expires_at)
        .limit(limit)
    )
    return [(row.slug, _file(row)) for row in await connection.execute(statement)]


async def forget_files(connection: AsyncConnection, *, before: datetime, limit: int) -> int:
    """Delete rows of files deleted before a moment whose bytes are proven to be gone; return their number.

    A row that a batch or an upload refers to stays.
    """
    proven = exists().where(deletions.c.file_id == files.c.id, deletions.c.finished_at.is_not(None))
    # A condition for each column, so that each is served by an index.
    references = (batches.c.input_file_id, batches.c.output_file_id, batches.c.error_file_id, file_uploads.c.file_id)
    unused = [~exists().where(column == files.c.id) for column in references]
    old = select(files.c.id).where(files.c.deleted_at < before, proven, *unused).limit(limit)
    return (await connection.execute(delete(files).where(files.c.id.in_(old)))).rowcount


async def usage_of(connection: AsyncConnection, tenant_id: int) -> FileUsage:
    """Count a tenant's files and their bytes; a pending upload counts as the file that it announces."""
    sums = select(func.count(), func.coalesce(func.sum(files.c.bytes), 0)).where(files.c.tenant_id == tenant_id, _LIVE)
    pending = select(func.count(), func.coalesce(func.sum(file_uploads.c.bytes), 0)).where(
        file_uploads.c.tenant_id == tenant_id, _PENDING
    )
    count, size = (await connection.execute(sums)).one()
    uploads, announced = (await connection.execute(pending)).one()
    return FileUsage(int(count) + int(uploads), int(size) + int(announced))


async def usage_of_all(connection: AsyncConnection) -> Mapping[Purpose, FileUsage]:
    """Count the files of all tenants and their bytes by purpose."""
    statement = (
        select(files.c.purpose, func.count(), func.coalesce(func.sum(files.c.bytes), 0))
        .where(_LIVE)
        .group_by(files.c.purpose)
    )
    return {
        Purpose(purpose): FileUsage(int(count), int(size))
        for purpose, count, size in await connection.execute(statement)
    }


async def used_by_files(connection: AsyncConnection, digests: Collection[str]) -> set[str]:
    """Return those blobs (SHA-256, hex) that a file, a part of an upload, or a chunk of a batch needs."""
    used: set[str] = set()
    ordered = sorted(digests)
    for start in range(0, len(ordered), _AT_ONCE):
        some = ordered[start : start + _AT_ONCE]
        used.update(await connection.scalars(select(files.c.digest).where(_LIVE, files.c.digest.in_(some))))
        used.update(await connection.scalars(select(file_parts.c.digest).where(file_parts.c.digest.in_(some))))
        used.update(await connection.scalars(select(batch_chunks.c.segment).where(batch_chunks.c.segment.in_(some))))
    return used


async def needed_by_files(connection: AsyncConnection) -> dict[str, list[tuple[str, str]]]:
    """Map each blob of a file, a part or a chunk to the tenant and the id of the file, the part or the batch."""
    statements = (
        select(files.c.digest, tenants.c.slug, files.c.id)
        .join(tenants, files.c.tenant_id == tenants.c.id)
        .where(_LIVE),
        select(file_parts.c.digest, tenants.c.slug, file_parts.c.id)
        .join_from(file_parts, file_uploads, file_parts.c.upload_id == file_uploads.c.id)
        .join(tenants, file_uploads.c.tenant_id == tenants.c.id),
        select(batch_chunks.c.segment, tenants.c.slug, batches.c.id)
        .join_from(batch_chunks, batches, batch_chunks.c.batch_id == batches.c.id)
        .join(tenants, batches.c.tenant_id == tenants.c.id)
        .where(batch_chunks.c.segment.is_not(None)),
    )
    needed: dict[str, list[tuple[str, str]]] = {}
    for statement in statements:
        for digest, tenant, name in await connection.execute(statement):
            needed.setdefault(digest, []).append((tenant, name))
    return needed


def _beyond(position: FilePosition, *, ascending: bool) -> ColumnElement[bool]:
    at, identity = files.c.created_at, files.c.id
    if ascending:
        return or_(at > position.created_at, and_(at == position.created_at, identity > position.id))
    return or_(at < position.created_at, and_(at == position.created_at, identity < position.id))


def _file(row: Row[Any]) -> StoredFile:
    return StoredFile(
        id=row.id,
        tenant_id=row.tenant_id,
        purpose=Purpose(row.purpose),
        filename=row.filename,
        bytes=row.bytes,
        sha256=row.sha256,
        digest=row.digest,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        deleted_at=row.deleted_at,
    )
