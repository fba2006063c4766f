"""Refused uploads with their reasons."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import Reason
from app.database.keys import DISPLAY_NAME, is_key_of
from app.database.tables import keys, upload_refusals
from app.domain.refusals import UploadRefusal


async def add_refusal(
    connection: AsyncConnection,
    *,
    tenant_id: int,
    adapter: str,
    at: datetime,
    key_id: str,
    digest: str | None,
    reasons: Sequence[Reason],
    reason_count: int,
    most: int,
) -> None:
    """Add a refusal, and remove the oldest ones of the tenant beyond ``most``."""
    statement = insert(upload_refusals).values(
        tenant_id=tenant_id,
        adapter=adapter,
        at=at,
        key_id=key_id,
        digest=digest,
        reasons=[asdict(reason) for reason in reasons],
        reason_count=reason_count,
    )
    await connection.execute(statement)
    own = upload_refusals.c.tenant_id == tenant_id
    first = select(upload_refusals.c.id).where(own).order_by(upload_refusals.c.id.desc()).offset(most - 1).limit(1)
    if (oldest_kept := await connection.scalar(first)) is not None:
        await connection.execute(delete(upload_refusals).where(own, upload_refusals.c.id < oldest_kept))


async def list_refusals(
    connection: AsyncConnection, *, tenant_id: int, adapter: str | None, below: int | None, since: datetime, limit: int
) -> list[UploadRefusal]:
    """List a tenant's refusals since a moment, the newest first."""
    table = upload_refusals.c
    statement = (
        select(upload_refusals, DISPLAY_NAME.label("key_name"))
        .join(keys, is_key_of(table.key_id, table.tenant_id), isouter=True)
        .where(table.tenant_id == tenant_id, table.at >= since)
    )
    if adapter is not None:
        statement = statement.where(table.adapter == adapter)
    if below is not None:
        statement = statement.where(table.id < below)
    return [
        UploadRefusal(
            row.id,
            row.adapter,
            row.at,
            row.key_id,
            row.key_name,
            row.digest,
            tuple(Reason.read(reason) for reason in row.reasons),
            row.reason_count,
        )
        for row in await connection.execute(statement.order_by(table.id.desc()).limit(limit))
    ]


async def remove_before(connection: AsyncConnection, before: datetime) -> None:
    """Remove refusals from before a moment."""
    await connection.execute(delete(upload_refusals).where(upload_refusals.c.at < before))


async def remove_of_tenant(connection: AsyncConnection, tenant_id: int) -> None:
    """Remove the refusals of a tenant."""
    await connection.execute(delete(upload_refusals).where(upload_refusals.c.tenant_id == tenant_id))
