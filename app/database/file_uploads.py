"""Uploads of files in parts, in the registry."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import file_parts, file_uploads, tenants
from app.domain.files import FilePart, FileUpload, FileUploadState, Purpose

_PENDING = file_uploads.c.state == FileUploadState.PENDING


async def insert_file_upload(connection: AsyncConnection, upload: FileUpload) -> None:
    await connection.execute(
        insert(file_uploads).values(
            id=upload.id,
            tenant_id=upload.tenant_id,
            state=upload.state,
            purpose=upload.purpose,
            filename=upload.filename,
            mime_type=upload.mime_type,
            bytes=upload.bytes,
            lifetime_s=upload.lifetime_s,
            created_at=upload.created_at,
            created_by=upload.created_by,
            expires_at=upload.expires_at,
        )
    )


async def find_file_upload(
    connection: AsyncConnection, tenant_id: int, upload_id: str, *, lock: bool = False
) -> FileUpload | None:
    """Find an upload of this tenant, in any state; ``lock`` locks its row until the transaction ends."""
    statement = select(file_uploads).where(file_uploads.c.id == upload_id, file_uploads.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update(key_share=True)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _upload(row)


async def count_pending(connection: AsyncConnection, tenant_id: int) -> int:
    """Count a tenant's pending uploads."""
    statement = select(func.count()).select_from(file_uploads).where(file_uploads.c.tenant_id == tenant_id, _PENDING)
    return int(await connection.scalar(statement) or 0)


async def pending_uploads(connection: AsyncConnection, tenant_id: int) -> list[FileUpload]:
    """Return a tenant's pending uploads, and lock their rows until the transaction ends."""
    statement = select(file_uploads).where(file_uploads.c.tenant_id == tenant_id, _PENDING).order_by(file_uploads.c.id)
    return [_upload(row) for row in await connection.execute(statement.with_for_update(key_share=True))]


async def expired_uploads(connection: AsyncConnection, *, now: datetime, limit: int) -> list[tuple[str, FileUpload]]:
    """List pending uploads that have expired, with the slugs of their tenants."""
    statement = (
        select(file_uploads, tenants.c.slug)
        .join(tenants, file_uploads.c.tenant_id == tenants.c.id)
        .where(_PENDING, file_uploads.c.expires_at <= now)
        .order_by(file_uploads.c.expires_at)
        .limit(limit)
    )
    return [(row.slug, _upload(row)) for row in await connection.execute(statement)]


async def end_file_upload(
    connection: AsyncConnection, upload_id: str, state: FileUploadState, *, file_id: str | None = None
) -> bool:
    """End a pending upload by compare-and-set; False if it has ended before."""
    statement = update(file_uploads).where(file_uploads.c.id == upload_id, _PENDING)
    return (await connection.execute(statement.values(state=state, file_id=file_id))).rowcount == 1


async def insert_part(connection: AsyncConnection, part: FilePart) -> None:
    """Add a part whose blob is in the store."""
    await connection.execute(
        insert(file_parts).values(
            id=part.id, upload_id=part.upload_id, bytes=part.bytes, digest=part.digest, created_at=part.created_at
        )
    )


async def parts_of(connection: AsyncConnection, upload_id: str) -> list[FilePart]:
    """List the parts of an upload."""
    rows = await connection.execute(select(file_parts).where(file_parts.c.upload_id == upload_id))
    return [FilePart(row.id, row.upload_id, row.bytes, row.digest, row.created_at) for row in rows]


async def parts_total(connection: AsyncConnection, upload_id: str) -> tuple[int, int]:
    """Return the number of an upload's parts, and their size together in bytes."""
    statement = select(func.count(), func.coalesce(func.sum(file_parts.c.bytes), 0))
    count, size = (await connection.execute(statement.where(file_parts.c.upload_id == upload_id))).one()
    return int(count), int(size)


async def delete_parts(connection: AsyncConnection, upload_id: str) -> Sequence[str]:
    """Delete the rows of an upload's parts. Returns the digests of their blobs, which nothing needs any more."""
    digests = await connection.scalars(select(file_parts.c.digest).where(file_parts.c.upload_id == upload_id))
    found = list(digests)
    await connection.execute(delete(file_parts).where(file_parts.c.upload_id == upload_id))
    return found


async def forget_uploads(connection: AsyncConnection, *, before: datetime, limit: int) -> int:
    """Delete uploads that have ended and were created before a moment; return their number."""
    parts = exists().where(file_parts.c.upload_id == file_uploads.c.id)
    old = select(file_uploads.c.id).where(~_PENDING, file_uploads.c.created_at < before, ~parts).limit(limit)
    return (await connection.execute(delete(file_uploads).where(file_uploads.c.id.in_(old)))).rowcount


def _upload(row: Row[Any]) -> FileUpload:
    return FileUpload(
        id=row.id,
        tenant_id=row.tenant_id,
        state=FileUploadState(row.state),
        purpose=Purpose(row.purpose),
        filename=row.filename,
        mime_type=row.mime_type,
        bytes=row.bytes,
        lifetime_s=row.lifetime_s,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        file_id=row.file_id,
    )
