"""Resumable uploads in the registry."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import tenants, uploads
from app.domain.uploads import UploadFile, UploadSession, UploadState

_LIVE = uploads.c.state.in_([state for state in UploadState if state.live])


async def insert_upload(connection: AsyncConnection, session: UploadSession) -> None:
    files = {name: asdict(file) for name, file in session.files.items()}
    await connection.execute(
        insert(uploads).values(
            id=session.id,
            tenant_id=session.tenant_id,
            adapter=session.adapter,
            state=session.state,
            files=files,
            options=dict(session.options),
            created_at=session.created_at,
            updated_at=session.updated_at,
            expires_at=session.expires_at,
            created_by=session.created_by,
        )
    )


async def find_upload(
    connection: AsyncConnection, tenant_id: int, adapter: str, upload_id: str
) -> UploadSession | None:
    """Find an upload of this tenant to this adapter, in any state."""
    statement = select(uploads).where(
        uploads.c.id == upload_id, uploads.c.tenant_id == tenant_id, uploads.c.adapter == adapter
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _session(row)


async def live_uploads(connection: AsyncConnection, tenant_id: int, adapter: str) -> list[UploadSession]:
    """List the uploads in progress to this adapter, newest first."""
    statement = select(uploads).where(uploads.c.tenant_id == tenant_id, uploads.c.adapter == adapter, _LIVE)
    rows = await connection.execute(statement.order_by(uploads.c.created_at.desc(), uploads.c.id))
    return [_session(row) for row in rows]


async def count_live(connection: AsyncConnection, tenant_id: int) -> int:
    """Count a tenant's uploads in progress."""
    statement = select(func.count()).select_from(uploads).where(uploads.c.tenant_id == tenant_id, _LIVE)
    return int(await connection.scalar(statement) or 0)


async def move_upload(
    connection: AsyncConnection,
    session: UploadSession,
    state: UploadState,
    *,
    at: datetime,
    result: int | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """Change the state of an upload by compare-and-set; False if it changed since ``session`` was read."""
    statement = (
        update(uploads)
        .where(
            uploads.c.id == session.id,
            uploads.c.state == session.state,
            uploads.c.updated_at == session.updated_at,
        )
        .values(state=state, updated_at=at, result=result, error=None if error is None else dict(error))
    )
    return (await connection.execute(statement)).rowcount == 1


async def given_up_uploads(
    connection: AsyncConnection, *, now: datetime, silent_since: datetime, limit: int
) -> list[tuple[str, UploadSession]]:
    """List expired uploads that are not being processed, with the slugs of their tenants.

    Args:
        silent_since: heartbeat limit: a server that finishes an upload and was last heard of before it counts as dead.
    """
    idle = or_(uploads.c.state == UploadState.OPEN, uploads.c.updated_at < silent_since)
    statement = (
        select(uploads, tenants.c.slug)
        .join(tenants, uploads.c.tenant_id == tenants.c.id)
        .where(_LIVE, uploads.c.expires_at <= now, idle)
    )
    rows = await connection.execute(statement.order_by(uploads.c.expires_at).limit(limit))
    return [(row.slug, _session(row)) for row in rows]


async def live_upload_ids(connection: AsyncConnection) -> set[str]:
    return set(await connection.scalars(select(uploads.c.id).where(_LIVE)))


async def forget_uploads(connection: AsyncConnection, *, before: datetime) -> int:
    """Delete uploads that ended before a moment; return their number."""
    return (await connection.execute(delete(uploads).where(~_LIVE, uploads.c.updated_at < before))).rowcount


def _session(row: Row[Any]) -> UploadSession:
    return UploadSession(
        id=row.id,
        tenant_id=row.tenant_id,
        adapter=row.adapter,
        state=UploadState(row.state),
        files={name: UploadFile(**file) for name, file in row.files.items()},
        options=row.options,
        result=row.result,
        error=row.error,
        created_at=row.created_at,
        updated_at=row.updated_at,
        expires_at=row.expires_at,
        created_by=row.created_by,
    )
