"""Batches in the registry."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.batch_tables import UNFINISHED_BATCH
from app.database.tables import batches, tenants
from app.domain.batches import Batch, BatchOptions, BatchState, BatchUsage, Cause, Quote
from app.domain.money import UNIT

_KEPT = batches.c.deleted_at.is_(None)
_AT_ONCE = 500
_TIMES = {state: batches.c[f"{state.value}_at"] for state in BatchState if state is not BatchState.VALIDATING}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tenant's unfinished batches: their number, and the number of their lines without a result."""

    batches: int
    lines: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a list of batches, newest first."""

    created_at: datetime
    id: str


async def insert_batch(connection: AsyncConnection, batch: Batch) -> None:
    """Insert a batch that is to be validated."""
    await connection.execute(
        insert(batches).values(
            id=batch.id,
            tenant_id=batch.tenant_id,
            state=batch.state,
            endpoint=batch.endpoint,
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            options=asdict(batch.options),
            metadata=None if batch.metadata is None else dict(batch.metadata),
            output_lifetime_s=batch.output_lifetime_s,
            created_at=batch.created_at,
            created_by=batch.created_by,
            expires_at=batch.expires_at,
        )
    )


async def find_batch(
    connection: AsyncConnection, batch_id: str, *, tenant_id: int | None = None, lock: bool = False
) -> Batch | None:
    """Find a batch that retention has not removed.

    Args:
        tenant_id: only a batch of this tenant; None for any.
        lock: lock its row until the transaction ends.
    """
    statement = select(batches).where(batches.c.id == batch_id, _KEPT)
    if tenant_id is not None:
        statement = statement.where(batches.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else batch_of(row)


async def find_cursor(connection: AsyncConnection, batch_id: str, *, tenant_id: int | None = None) -> Cursor | None:
    """Find the position of a batch in a list. Retention may have removed the batch lately.

    Args:
        tenant_id: only a batch of this tenant; None for any.
    """
    statement = select(batches.c.created_at, batches.c.id).where(batches.c.id == batch_id)
    if tenant_id is not None:
        statement = statement.where(batches.c.tenant_id == tenant_id)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Cursor(row.created_at, row.id)


async def find_batches(connection: AsyncConnection, batch_ids: Sequence[str]) -> dict[str, Batch]:
    """Return batches by id."""
    found: dict[str, Batch] = {}
    for start in range(0, len(batch_ids), _AT_ONCE):
        some = batch_ids[start : start + _AT_ONCE]
        rows = await connection.execute(select(batches).where(batches.c.id.in_(some)))
        found.update((row.id, batch_of(row)) for row in rows)
    return found


async def list_batches(
    connection: AsyncConnection,
    *,
    tenant_id: int | None = None,
    states: Collection[BatchState] = (),
    after: Cursor | None = None,
    limit: int,
) -> list[tuple[str, Batch]]:
    """List batches with the slugs of their tenants, newest first.

    Args:
        tenant_id: only batches of this tenant; None for all.
        states: only batches in these states; empty for all.
        after: only batches that follow this one.
    """
    statement = select(batches, tenants.c.slug).join_from(batches, tenants, batches.c.tenant_id == tenants.c.id)
    statement = statement.where(_KEPT)
    if tenant_id is not None:
        statement = statement.where(batches.c.tenant_id == tenant_id)
    if states:
        statement = statement.where(batches.c.state.in_(list(states)))
    if after is not None:
        statement = statement.where(_follows(after))
    rows = await connection.execute(statement.order_by(batches.c.created_at.desc(), batches.c.id.desc()).limit(limit))
    return [(row.slug, batch_of(row)) for row in rows]


async def waiting_of(connection: AsyncConnection, tenant_id: int) -> Waiting:
    """Count a tenant's unfinished batches and their lines without a result."""
    without_result = func.sum(batches.c.total - batches.c.completed - batches.c.failed)
    statement = select(func.count(), without_result).where(batches.c.tenant_id == tenant_id, UNFINISHED_BATCH)
    count, lines = (await connection.execute(statement)).one()
    return Waiting(int(count), int(lines or 0))


async def unfinished_of_key(connection: AsyncConnection, key_id: str) -> list[Batch]:
    """List the unfinished batches that a key created, by id, and lock their rows until the transaction ends."""
    statement = (
        select(batches).where(batches.c.created_by == key_id, UNFINISHED_BATCH).order_by(batches.c.id).with_for_update()
    )
    return [batch_of(row) for row in await connection.execute(statement)]


async def set_state(
    connection: AsyncConnection,
    batch_id: str,
    state: BatchState,
    *,
    expected: Collection[BatchState],
    at: datetime,
    node: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Change the state of a batch by compare-and-set, and end its lease; False if it is in no expected state.

    Args:
        node: change it only if this node holds the lease; None: regardless of the lease.
        values: further columns.
    """
    conditions = [batches.c.id == batch_id, batches.c.state.in_(list(expected))]
    if node is not None:
        conditions.append(batches.c.node == node)
    changes = {"state": state, f"{state.value}_at": at, "node": None, "leased_until": None, **(values or {})}
    if state.final:
        changes["ended_at"] = at
    statement = update(batches).where(*conditions).values(changes)
    return (await connection.execute(statement)).rowcount == 1


async def lease(
    connection: AsyncConnection, batch_id: str, state: BatchState, *, node: str, now: datetime, until: datetime
) -> bool:
    """Take or renew a node's lease on a batch in this state; False if another node holds it or the state changed."""
    statement = (
        update(batches)
        .where(batches.c.id == batch_id, batches.c.state == state, _leasable(node, now))
        .values(node=node, leased_until=until)
    )
    return (await connection.execute(statement)).rowcount == 1


async def leasable(
    connection: AsyncConnection, state: BatchState, *, node: str, now: datetime, without: Collection[str] = ()
) -> list[Batch]:
    """List the oldest batch of each tenant in this state that the node may lease, oldest first.

    Args:
        without: ids of batches that do not count.
    """
    place = func.row_number().over(partition_by=batches.c.tenant_id, order_by=(batches.c.created_at, batches.c.id))
    places = (
        select(batches.c.id, place.label("place"))
        .where(batches.c.state == state, _leasable(node, now), batches.c.id.not_in(sorted(without)))
        .subquery()
    )
    first = select(places.c.id).where(places.c.place == 1)
    rows = await connection.execute(
        select(batches).where(batches.c.id.in_(first)).order_by(batches.c.created_at, batches.c.id)
    )
    return [batch_of(row) for row in rows]


async def release_leases(connection: AsyncConnection, node: str) -> int:
    """End all leases of a node on batches; return their number."""
    statement = update(batches).where(batches.c.node == node).values(node=None, leased_until=None)
    return (await connection.execute(statement)).rowcount


async def set_blocked(connection: AsyncConnection, batch_id: str, blocked: Cause | None) -> None:
    """Set why no line of an unfinished batch runs at present."""
    value = None if blocked is None else asdict(blocked)
    await connection.execute(update(batches).where(batches.c.id == batch_id, UNFINISHED_BATCH).values(blocked=value))


def quote_values(quote: Quote) -> dict[str, Any]:
    """Represent a quote as JSON; amounts of money may exceed the integers of JSON and are text."""
    return asdict(quote) | {"most_cost": str(quote.most_cost)}


def batch_of(row: Row[Any]) -> Batch:
    """Parse a row with all columns of ``batches``."""
    columns = row._mapping
    return Batch(
        id=row.id,
        tenant_id=row.tenant_id,
        state=BatchState(row.state),
        endpoint=row.endpoint,
        input_file_id=row.input_file_id,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        completion_window=row.completion_window,
        options=BatchOptions(**row.options),
        metadata=columns["metadata"],
        output_lifetime_s=row.output_lifetime_s,
        errors=row.errors,
        quote=_quote(row.quote),
        blocked=cause_of_row(row.blocked),
        reason=cause_of_row(row.reason),
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        usage=BatchUsage(
            row.prompt_tokens, row.cached_tokens, row.output_tokens, row.cost_units * UNIT + row.cost_picos
        ),
        node=row.node,
        leased_until=row.leased_until,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        times={state: at for state, column in _TIMES.items() if (at := columns[column.name]) is not None},
    )


def _follows(cursor: Cursor) -> ColumnElement[bool]:
    same_time = and_(batches.c.created_at == cursor.created_at, batches.c.id < cursor.id)
    return or_(batches.c.created_at < cursor.created_at, same_time)


def _leasable(node: str, now: datetime) -> ColumnElement[bool]:
    return or_(batches.c.node.is_(None), batches.c.node == node, batches.c.leased_until <= now)


def _quote(stored: Mapping[str, Any] | None) -> Quote | None:
    return None if stored is None else Quote(**{**stored, "most_cost": int(stored["most_cost"])})


def cause_of_row(stored: Mapping[str, Any] | None) -> Cause | None:
    """Parse a column with a cause."""
    return None if stored is None else Cause(**stored)
