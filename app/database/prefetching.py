"""Queries of the prefetcher: versions that can be loaded, and recent changes of aliases."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import VersionKey
from app.database.filters import servable
from app.database.tables import adapters, alias_history, alias_targets, versions
from app.domain.adapters import VersionState

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Move:
    """A target of a changed alias.

    Attributes:
        revision: revision of the change; follows the order of transactions approximately.
        version_id: current target of the alias; None if the alias was removed.
    """

    revision: int
    tenant_id: int
    version_id: int | None


async def ready_keys(
    connection: AsyncConnection, version_ids: Collection[int], base_digest: str, *, head: bool
) -> dict[int, VersionKey]:
    """Return those versions that this server can serve, by id.

    Args:
        version_ids: ids of the versions.
        base_digest: digest of the server's base.
        head: True if the server serves adapters of the head.
    """
    conditions = servable(base_digest, head=head)
    ids, keys = list(version_ids), {}
    for start in range(0, len(ids), _AT_ONCE):
        batch = ids[start : start + _AT_ONCE]
        statement = select(
            versions.c.id,
            versions.c.config_digest,
            versions.c.weights_digest,
            versions.c.config_bytes,
            versions.c.weights_bytes,
        ).where(versions.c.id.in_(batch), versions.c.state == VersionState.READY, *conditions)
        keys.update({row.id: VersionKey(*row) for row in await connection.execute(statement)})
    return keys


async def newest_revision(connection: AsyncConnection) -> int:
    """Return the newest revision of any alias; 0 before the first."""
    return int(await connection.scalar(select(func.max(alias_history.c.id))) or 0)


async def moves_after(connection: AsyncConnection, revision: int, *, limit: int) -> list[Move]:
    """List the current targets of aliases changed after a revision, in order of the changes."""
    target = (alias_targets.c.adapter_id == alias_history.c.adapter_id) & (
        alias_targets.c.alias == alias_history.c.alias
    )
    statement = (
        select(alias_history.c.id, adapters.c.tenant_id, alias_targets.c.version_id)
        .join_from(alias_history, adapters, alias_history.c.adapter_id == adapters.c.id)
        .outerjoin(alias_targets, target)
        .where(alias_history.c.id > revision)
        .order_by(alias_history.c.id)
        .limit(limit)
    )
    return [Move(*row) for row in await connection.execute(statement)]
