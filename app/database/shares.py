"""Shares of adapters with other tenants."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.filters import named, ordered
from app.database.tables import adapters, alias_targets, shares, tenants, versions
from app.domain.adapters import VersionState
from app.domain.searches import EVERYTHING, Search
from app.domain.shares import Share, SharedAdapter

# Same conditions as app.database.resolution: every adapter listed can be named.
_SHARED: Select[Any] = (
    select(
        adapters.c.id,
        adapters.c.slug,
        adapters.c.created_at,
        tenants.c.slug.label("owner"),
        shares.c.created_at.label("shared_at"),
    )
    .join_from(shares, adapters, shares.c.adapter_id == adapters.c.id)
    .join(tenants, adapters.c.tenant_id == tenants.c.id)
    .where(adapters.c.deleted_at.is_(None), tenants.c.deleted_at.is_(None), tenants.c.disabled.is_(False))
)
_LISTED: Select[Any] = select(shares, tenants.c.id.label("recipient_id")).join_from(
    shares, tenants, (shares.c.tenant_id == tenants.c.id) & tenants.c.deleted_at.is_(None), isouter=True
)


@dataclass(frozen=True, slots=True)
class NewShare:
    """A share to insert.

    Attributes:
        recipient: slug of the recipient, as given.
        tenant_id: tenant with that slug; None if there is none.
    """

    adapter_id: int
    recipient: str
    tenant_id: int | None
    created_at: datetime
    created_by: str


async def put_share(connection: AsyncConnection, new: NewShare) -> tuple[Share, bool]:
    """Share an adapter with the tenant that currently has the slug; the owner's row must be locked.

    Returns:
        The share, and True if it is new. An existing share keeps its time and creator.
    """
    conditions = (shares.c.adapter_id == new.adapter_id, shares.c.recipient == new.recipient)
    changed = await connection.execute(update(shares).where(*conditions).values(tenant_id=new.tenant_id))
    if changed.rowcount == 0:
        await connection.execute(
            insert(shares).values(
                adapter_id=new.adapter_id,
                recipient=new.recipient,
                tenant_id=new.tenant_id,
                created_at=new.created_at,
                created_by=new.created_by,
            )
        )
    row = (await connection.execute(_LISTED.where(*conditions))).one()
    return _share(row), changed.rowcount == 0


async def remove_share(connection: AsyncConnection, adapter_id: int, recipient: str) -> bool:
    """Remove a share; False if there was none."""
    conditions = (shares.c.adapter_id == adapter_id, shares.c.recipient == recipient)
    return (await connection.execute(delete(shares).where(*conditions))).rowcount > 0


async def count_shares(connection: AsyncConnection, adapter_id: int) -> int:
    statement = select(func.count()).select_from(shares).where(shares.c.adapter_id == adapter_id)
    return int(await connection.scalar(statement) or 0)


async def list_shares(
    connection: AsyncConnection, adapter_id: int, *, after: str | None, limit: int, search: Search
) -> list[Share]:
    """List the adapter's shares whose recipients the search finds, always by recipient.

    Args:
        after: recipient of the last row of the previous page.
    """
    recipient = shares.c.recipient
    statement = _LISTED.where(shares.c.adapter_id == adapter_id, *named(search, recipient))
    if after is not None:
        statement = statement.where(recipient < after if search.sort.descending else recipient > after)
    statement = statement.order_by(recipient.desc() if search.sort.descending else recipient).limit(limit)
    return [_share(row) for row in await connection.execute(statement)]


async def list_shared(
    connection: AsyncConnection, tenant_id: int, *, after: str | None, limit: int, search: Search = EVERYTHING
) -> list[SharedAdapter]:
    """List the adapters shared with this tenant that the search finds by ``owner/adapter``.

    Args:
        after: position of the last row of the previous page, see :func:`app.database.filters.ordered`.
    """
    name = tenants.c.slug + "/" + adapters.c.slug
    statement = _SHARED.where(shares.c.tenant_id == tenant_id, *named(search, name))
    statement = ordered(statement, search.sort, identity=adapters.c.id, name=name, after=after)
    rows = (await connection.execute(statement.limit(limit))).all()
    return await _with_ready_versions(connection, rows)


async def find_shared(connection: AsyncConnection, tenant_id: int, owner: str, adapter: str) -> SharedAdapter | None:
    """Find an adapter of an owner if it is shared with this tenant."""
    conditions = (shares.c.tenant_id == tenant_id, tenants.c.slug == owner, adapters.c.slug == adapter)
    rows = (await connection.execute(_SHARED.where(*conditions))).all()
    return next(iter(await _with_ready_versions(connection, rows)), None)


async def _with_ready_versions(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[SharedAdapter]:
    statement = (
        select(versions.c.adapter_id, versions.c.number, alias_targets.c.alias, alias_targets.c.weight)
        .join_from(versions, alias_targets, alias_targets.c.version_id == versions.c.id, isouter=True)
        .where(versions.c.adapter_id.in_([row.id for row in rows]), versions.c.state == VersionState.READY)
        .order_by(versions.c.number.desc(), alias_targets.c.alias)
    )
    numbers: dict[int, dict[int, None]] = defaultdict(dict)
    names: dict[int, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for adapter_id, number, alias, weight in await connection.execute(statement):
        numbers[adapter_id][number] = None
        if alias is not None:
            names[adapter_id][alias][number] = weight
    return [
        SharedAdapter(
            id=row.id,
            owner=row.owner,
            name=row.slug,
            created_at=row.created_at,
            shared_at=row.shared_at,
            versions=tuple(numbers[row.id]),
            aliases=dict(sorted(names[row.id].items())),
        )
        for row in rows
    ]


def _share(row: Row[Any]) -> Share:
    exists = row.recipient_id is not None
    return Share(row.recipient, recipient_exists=exists, created_at=row.created_at, created_by=row.created_by)
