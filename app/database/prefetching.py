"""What prefetching asks the registry: which versions may be loaded, and where aliases lead since a moment."""

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
    """One target of an alias that was changed.

    Attributes:
        revision: the change's; grows with the order of the changes' transactions, more or less.
        version_id: what the alias points at now; None: it is gone.
    """

    revision: int
    tenant_id: int
    version_id: int | None


async def ready_keys(
    connection: AsyncConnection, version_ids: Collection[int], base_digest: str, *, head: bool
) -> dict[int, VersionKey]:
    """Those of the versions that this server can serve, by id.

    Args:
        base_digest: of its base.
        head: whether it serves adapters of the head.
    """
    here = servable(base_digest, head=head)
    asked, found = list(version_ids), {}
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        statement = select(
            versions.c.id,
            versions.c.config_digest,
            versions.c.weights_digest,
            versions.c.config_bytes,
            versions.c.weights_bytes,
        ).where(versions.c.id.in_(some), versions.c.state == VersionState.READY, *here)
        found.update({row.id: VersionKey(*row) for row in await connection.execute(statement)})
    return found


async def newest_revision(connection: AsyncConnection) -> int:
    """The newest change of any alias; 0 before the first."""
    return int(await connection.scalar(select(func.max(alias_history.c.id))) or 0)


async def moves_after(connection: AsyncConnection, revision: int, *, limit: int) -> list[Move]:
    """Where the aliases that were changed since then lead now, by the order of the changes."""
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
