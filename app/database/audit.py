"""The audit trail: actor, action, and the state before and after each change."""

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
    """Add a row, in the transaction of the change itself.

    Args:
        actor: id of a key, ``cli``, or ``engine`` for a quarantine.
        action: action, e.g. ``tenant.create``.
        tenant: slug of the owner; None for platform keys.
        subject: changed object, e.g. ``pricing@3`` or the id of a key.
        before, after: state as JSON; None where the object did not exist, or no longer exists.
    """
    await connection.execute(
        insert(audit).values(
            at=at, actor=actor, action=action, tenant=tenant, subject=subject, before=before, after=after
        )
    )
