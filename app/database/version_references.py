"""References that keep a version in service: aliases, canaries, pins."""

from collections.abc import Collection, Mapping

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import canaries, pins, versions


async def version_ids(connection: AsyncConnection, adapter_id: int) -> dict[int, int]:
    """Map number to row id for every version of the adapter, in any state."""
    statement = select(versions.c.number, versions.c.id).where(versions.c.adapter_id == adapter_id)
    return {row.number: row.id for row in await connection.execute(statement)}


async def running_canaries(connection: AsyncConnection, adapter_id: int, ids: Collection[int]) -> set[str]:
    """Return the aliases whose running canary compares one of these versions."""
    either = or_(canaries.c.baseline_id.in_(ids), canaries.c.candidate_id.in_(ids))
    statement = select(canaries.c.alias).where(
        canaries.c.adapter_id == adapter_id, canaries.c.state == "running", either
    )
    return set(await connection.scalars(statement))


async def pinned(connection: AsyncConnection, ids: Collection[int]) -> set[int]:
    """Return those versions that are pinned."""
    return set(await connection.scalars(select(pins.c.version_id).where(pins.c.version_id.in_(ids))))


async def remove_pins(connection: AsyncConnection, ids: Collection[int]) -> None:
    await connection.execute(delete(pins).where(pins.c.version_id.in_(ids)))


async def change_state(
    connection: AsyncConnection, version_id: int, states: Mapping[str, str], *, reason: str | None
) -> bool:
    """Change a version's state from ``states["before"]`` to ``states["after"]``; False if its state is another one."""
    conditions = (versions.c.id == version_id, versions.c.state == states["before"])
    statement = versions.update().where(*conditions).values(state=states["after"], state_reason=reason)
    return (await connection.execute(statement)).rowcount == 1


async def state_of(connection: AsyncConnection, version_id: int) -> str | None:
    """Return a version's state; None if there never was such a version."""
    state: str | None = await connection.scalar(select(versions.c.state).where(versions.c.id == version_id))
    return state
