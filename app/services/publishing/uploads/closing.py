"""Closing of a resumable upload: its final row, its audit row, and the clean-up of its staged files."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from adapters.errors import StorageError
from adapters.stores.staging import Staged, StagingArea
from app.database import audit, uploads
from app.database.session import Database
from app.domain.errors import NotFound
from app.domain.uploads import UploadSession, UploadState
from app.services.common.lookups import tenant_or_404

logger = logging.getLogger(__name__)


async def find_session(database: Database, tenant: str, adapter: str, upload_id: str) -> UploadSession:
    """Find an upload of this tenant to this adapter.

    Raises:
        NotFound: no such upload, or it belongs to another tenant or another adapter.
        RegistryUnavailable
    """
    async with database.read() as connection:
        owner = await tenant_or_404(connection, tenant)
        session = await uploads.find_upload(connection, owner.id, adapter, upload_id)
    if session is None:
        raise NotFound(f"There is no upload {upload_id[:80]!r}.", param="upload")
    return session


async def end_upload(
    database: Database,
    tenant: str,
    session: UploadSession,
    state: UploadState,
    *,
    at: datetime,
    actor: str,
    result: int | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """Write the final state of an upload, with its audit row (compare-and-set).

    Returns:
        False if the row has changed since ``session`` was read; then nothing is written.

    Raises:
        RegistryUnavailable
    """
    async with database.write() as connection:
        if not await uploads.move_upload(connection, session, state, at=at, result=result, error=error):
            return False
        after: dict[str, Any] = {"upload": session.id}
        if result is not None:
            after["version"] = result
        if error is not None:
            after["reasons"] = [reason["code"] for reason in error["reasons"]]
        await audit.record(
            connection,
            at=at,
            actor=actor,
            action=f"upload.{state.value}",
            tenant=tenant,
            subject=session.adapter,
            after=after,
        )
        return True


async def remove_staged(staging: StagingArea, session: UploadSession) -> None:
    """Remove an ended upload's files from the staging area. The sweeper retries files that cannot be removed now."""
    for name, file in session.files.items():
        if file.stored:
            continue
        try:
            await asyncio.to_thread(staging.abort, staged_file(session, name))
        except StorageError as error:
            logger.warning("Upload %s: the staged file %s could not be removed: %s", session.id, name, error)


def staged_file(session: UploadSession, name: str) -> Staged:
    """Return the staging area's handle of an upload's file."""
    return Staged(session.id, name, session.files[name].token)
