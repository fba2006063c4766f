"""What all ends of a resumable upload have in common: its row, its audit row, and what it leaves in the store."""

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
    """An upload of this tenant to this adapter.

    Raises:
        NotFound: there is none, or it is another tenant's, or goes to another adapter.
        RegistryUnavailable
    """
    async with database.read() as connection:
        owner = await tenant_or_404(connection, tenant)
        session = await uploads.find_upload(connection, owner.id, adapter, upload_id)
    if session is None:
        raise NotFound(f"there is no upload {upload_id[:80]!r}", param="upload")
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
    """Write the last state of an upload, with its audit row; False, and nothing is written, if it has changed since
    ``session`` was read.

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
    """Remove what an ended upload left in the store; what cannot be removed now is the sweep's."""
    for name, file in session.files.items():
        if file.stored:
            continue
        try:
            await asyncio.to_thread(staging.abort, staged_file(session, name))
        except StorageError as error:
            logger.warning("upload %s left %s behind: %s", session.id, name, error)


def staged_file(session: UploadSession, name: str) -> Staged:
    """A file of the upload, as the staging area knows it."""
    return Staged(session.id, name, session.files[name].token)
