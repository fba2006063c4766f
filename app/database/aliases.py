"""Listings of aliases and of their history; :mod:`app.database.adapters` changes them."""

from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import MAX_VERSION_NUMBER
from app.database.tables import adapters, alias_history, alias_targets, aliases, versions
from app.domain.adapters import VersionState
from app.domain.aliases import Alias, AliasChange

_CHUNK = 100


async def list_aliases(connection: AsyncConnection, adapter_id: int, *, after: str, limit: int) -> list[Alias]:
    """List the adapter's aliases with a name above ``after``, by name."""
    page = (
        select(aliases)
        .where(aliases.c.adapter_id == adapter_id, aliases.c.name > after)
        .order_by(aliases.c.name)
        .limit(limit)
        .subquery()
    )
    statement = (
        select(page, adapters.c.slug, versions.c.number, alias_targets.c.weight)
        .join_from(page, adapters, page.c.adapter_id == adapters.c.id)
        .join(alias_targets, (alias_targets.c.adapter_id == page.c.adapter_id) & (alias_targets.c.alias == page.c.name))
        .join(versions, alias_targets.c.version_id == versions.c.id)
        .order_by(page.c.name, versions.c.number.desc())
    )
    rows_by_name: dict[str, tuple[Row[Any], dict[int, int]]] = {}
    for row in await connection.execute(statement):
        rows_by_name.setdefault(row.name, (row, {}))[1][row.number] = row.weight
    return [
        Alias(row.slug, row.name, row.revision, targets, row.canary_id, row.updated_at)
        for row, targets in rows_by_name.values()
    ]


async def count_aliases(connection: AsyncConnection, adapter_id: int) -> int:
    statement = select(func.count()).select_from(aliases).where(aliases.c.adapter_id == adapter_id)
    return int((await connection.execute(statement)).scalar_one())


async def list_changes(
    connection: AsyncConnection, adapter_id: int, alias: str, *, below: int, limit: int
) -> list[AliasChange]:
    """List the history of an alias, existing or removed, newest first.

    Args:
        below: upper bound of the revisions, exclusive.
    """
    statement = (
        select(alias_history)
        .where(alias_history.c.adapter_id == adapter_id, alias_history.c.alias == alias, alias_history.c.id < below)
        .order_by(alias_history.c.id.desc())
        .limit(limit)
    )
    return [_change(row) for row in await connection.execute(statement)]


async def last_ready_target(connection: AsyncConnection, adapter_id: int, alias: str) -> tuple[int, int] | None:
    """Find the rollback target of an alias: the last ready version that it pointed at before its current targets.

    In a split, the newest ready version counts.

    Returns:
        Id and number of the version; None if no earlier target is ready.
    """
    statement = select(versions.c.id, versions.c.number).where(
        versions.c.adapter_id == adapter_id, versions.c.state == VersionState.READY
    )
    ready = {row.number: row.id for row in await connection.execute(statement)}
    if not ready:
        return None
    below = MAX_VERSION_NUMBER
    while changes := await list_changes(connection, adapter_id, alias, below=below, limit=_CHUNK):
        for change in changes:
            if served := ready.keys() & (change.targets or {}).keys():
                return ready[max(served)], max(served)
        below = changes[-1].revision
    return None


def _change(row: Row[Any]) -> AliasChange:
    # JSON object keys are strings.
    targets = None if row.targets is None else {int(number): weight for number, weight in row.targets.items()}
    return AliasChange(row.id, row.at, row.actor, row.action, targets, row.reason)
