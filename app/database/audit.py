"""The audit trail: who changed what, from what, to what."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import audit

Snapshot = Mapping[str, Any] | None


async def record(
    connection: AsyncConnection,
    *,
    at: datetime,
    actor: str,
    action: str,
    tenant: str | None,
    subject: str,
    before: Snapshot = None,
    after: Snapshot = None,
) -> None:
    """Add one row, in the transaction of the change itself.

    Args:
        actor: a key's id, ``cli``, or ``engine`` for a quarantine.
        action: e.g. ``tenant.create``.
        tenant: the owner's slug; None for platform keys.
        subject: what was changed, e.g. ``pricing@3`` or a key's id.
        before, after: JSON; None where there was, or is, nothing.
    """
    await connection.execute(
        insert(audit).values(
            at=at, actor=actor, action=action, tenant=tenant, subject=subject, before=before, after=after
        )
    )
