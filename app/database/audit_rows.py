"""Pages of the audit trail, with names of the keys that acted."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.keys import DISPLAY_NAME
from app.database.tables import audit, audit_seals, keys
from app.domain.audit import AuditFilter, AuditRow, NamedRow


async def list_rows(connection: AsyncConnection, only: AuditFilter, *, below: int | None, limit: int) -> list[NamedRow]:
    """List rows with an id below ``below``, the newest first."""
    statement = (
        select(audit, DISPLAY_NAME.label("actor_name"), audit_seals.c.mac)
        .join_from(audit, keys, audit.c.actor == keys.c.id, isouter=True)
        .join(audit_seals, audit_seals.c.row_id == audit.c.id, isouter=True)
        .where(*_conditions(only))
    )
    if below is not None:
        statement = statement.where(audit.c.id < below)
    rows = await connection.execute(statement.order_by(audit.c.id.desc()).limit(limit))
    return [NamedRow(_row(row._mapping), row.actor_name, row.mac is not None) for row in rows]


def _conditions(only: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    for column, value in ((audit.c.tenant, only.tenant), (audit.c.actor, only.actor), (audit.c.subject, only.subject)):
        if value is not None:
            conditions.append(column == value)
    if only.action is not None and only.action.endswith("."):
        conditions.append(audit.c.action.startswith(only.action, autoescape=True))
    elif only.action is not None:
        conditions.append(audit.c.action == only.action)
    if only.start is not None:
        conditions.append(audit.c.at >= only.start)
    if only.end is not None:
        conditions.append(audit.c.at < only.end)
    return conditions


def _row(found: Mapping[Any, Any]) -> AuditRow:
    return AuditRow(**{name: found[name] for name in AuditRow.__dataclass_fields__})
