"""Removal of files and uploads from the registry, inside the caller's transaction.

Rows and the request to delete the bytes are written together. Every node removes its copies, then the bytes are
deleted and verified; see :mod:`app.services.deletion.worker`.
"""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, deletions, file_uploads, files
from app.domain.access import Tenant
from app.domain.deletions import BlobFate
from app.domain.files import FileUpload, FileUploadState, StoredFile


async def remove_file(
    connection: AsyncConnection, file: StoredFile, *, tenant: str, at: datetime, actor: str, action: str
) -> str:
    """Delete a file whose row is locked. Returns the id of the deletion.

    Args:
        tenant: slug of the owner.
        action: ``file.delete`` or ``file.expire``.
    """
    await files.mark_file_deleted(connection, file.id, at=at)
    identity = await deletions.insert_deletion(
        connection,
        [],
        tenant=tenant,
        subject=file.id,
        at=at,
        by=actor,
        blobs={file.digest: BlobFate()},
        file_id=file.id,
    )
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action=action,
        tenant=tenant,
        subject=file.id,
        before=described(file),
        after={"deletion": identity},
    )
    return identity


async def end_upload(
    connection: AsyncConnection,
    upload: FileUpload,
    state: FileUploadState,
    *,
    tenant: str,
    at: datetime,
    actor: str,
    file_id: str | None = None,
) -> bool:
    """End a pending upload and delete its parts; False if it has ended before.

    Args:
        tenant: slug of the owner.
        file_id: file of a completed upload.
    """
    if not await file_uploads.end_file_upload(connection, upload.id, state, file_id=file_id):
        return False
    if digests := await file_uploads.delete_parts(connection, upload.id):
        await deletions.insert_deletion(
            connection,
            [],
            tenant=tenant,
            subject=upload.id,
            at=at,
            by=actor,
            blobs={digest: BlobFate() for digest in digests},
        )
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action=f"file_upload.{state.value}",
        tenant=tenant,
        subject=upload.id,
        after=None if file_id is None else {"file": file_id},
    )
    return True


def described(file: StoredFile) -> dict[str, object]:
    """Describe a file for the audit trail, without its name and its content."""
    return {"purpose": file.purpose.value, "bytes": file.bytes, "sha256": file.sha256}


async def remove_all_files(connection: AsyncConnection, tenant: Tenant, *, at: datetime, actor: str) -> None:
    """Delete all files of a tenant whose row is locked, and cancel its uploads."""
    for upload in await file_uploads.pending_uploads(connection, tenant.id):
        await end_upload(connection, upload, FileUploadState.CANCELLED, tenant=tenant.slug, at=at, actor=actor)
    for file in await files.live_files(connection, tenant.id):
        await remove_file(connection, file, tenant=tenant.slug, at=at, actor=actor, action="file.delete")
