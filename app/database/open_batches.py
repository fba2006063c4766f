"""Open batches in the registry: a narrow row of each, and the rights under which their lines run.

Every server reads them every second. Both queries are served by indexes that do not grow with batches that have ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, exists, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.batch_tables import UNFINISHED_BATCH, UNFINISHED_CHUNK
from app.database.batches import cause_of_row
from app.database.tables import batch_chunks, batches, keys, tenants
from app.domain.access import Caller, Scope
from app.domain.batches import Batch, BatchState, Cause
from app.domain.limits.limits import Limits
from app.domain.restrictions import UNRESTRICTED, Restrictions

#: ``created_by`` of batches that the command line created without a key.
_NO_KEY = "cli"

#: Row id of a tenant, and id of a key that created batches of it.
Creator = tuple[int, str]


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Columns of a batch that is not final and that change while it is open.

    Attributes:
        waiting: number of its lines without a result.
        ended: whether it is in progress and all its chunks are done.
    """

    id: str
    creator: Creator
    state: BatchState
    blocked: Cause | None
    created_at: datetime
    waiting: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights under which the lines of a key's batches run.

    Attributes:
        caller: the key, whether or not it has expired.
        key_revoked: whether the key was revoked or no longer exists.
        tenant_disabled: whether the tenant is disabled at present.
        tenant_deleted: whether the tenant was deleted.
    """

    caller: Caller
    key_revoked: bool
    tenant_disabled: bool
    tenant_deleted: bool


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that runs, is being cancelled or finalized, with the rights under which its lines run.

    Attributes:
        batch: its sums and its lease are those of the last change of its state.
    """

    batch: Batch
    rights: Rights
    ended: bool = False

    @property
    def caller(self) -> Caller:
        return self.rights.caller

    @property
    def slug(self) -> str:
        """Slug of the tenant."""
        return self.rights.caller.tenant_slug or ""

    @property
    def tenant_disabled(self) -> bool:
        return self.rights.tenant_disabled


async def open_rows(connection: AsyncConnection) -> list[OpenRow]:
    """List all batches that are not final, oldest first."""
    unfinished = exists(literal_column("1")).where(batch_chunks.c.batch_id == batches.c.id, UNFINISHED_CHUNK)
    in_progress = batches.c.state == literal_column(f"'{BatchState.IN_PROGRESS.value}'")
    statement = (
        select(
            batches.c.id,
            batches.c.tenant_id,
            batches.c.created_by,
            batches.c.state,
            batches.c.blocked,
            batches.c.created_at,
            (batches.c.total - batches.c.completed - batches.c.failed).label("waiting"),
            and_(in_progress, ~unfinished).label("ended"),
        )
        .where(UNFINISHED_BATCH)
        .order_by(batches.c.created_at, batches.c.id)
    )
    return [
        OpenRow(
            row.id,
            (row.tenant_id, row.created_by),
            BatchState(row.state),
            cause_of_row(row.blocked),
            row.created_at,
            row.waiting,
            bool(row.ended),
        )
        for row in await connection.execute(statement)
    ]


async def rights_of_creators(connection: AsyncConnection) -> Mapping[Creator, Rights]:
    """Return the rights of all keys that created a batch that is not final."""
    creators = select(batches.c.tenant_id, batches.c.created_by).where(UNFINISHED_BATCH).distinct().subquery()
    statement = (
        select(
            creators.c.tenant_id,
            creators.c.created_by,
            tenants.c.slug,
            tenants.c.salt,
            tenants.c.weight,
            tenants.c.limits,
            tenants.c.disabled,
            tenants.c.deleted_at,
            keys.c.id.label("key_id"),
            keys.c.restrictions,
            keys.c.revoked_at,
        )
        .join_from(creators, tenants, creators.c.tenant_id == tenants.c.id)
        .join(keys, and_(keys.c.id == creators.c.created_by, keys.c.tenant_id == creators.c.tenant_id), isouter=True)
    )
    rows: Iterable[Row[Any]] = await connection.execute(statement)
    return {(row.tenant_id, row.created_by): _rights(row) for row in rows}


def _rights(row: Row[Any]) -> Rights:
    caller = Caller(
        row.created_by,
        row.tenant_id,
        row.slug,
        frozenset({Scope.INFERENCE}),
        row.salt,
        weight=row.weight,
        limits=Limits.of(row.limits or {}),
        restrictions=UNRESTRICTED if row.restrictions is None else Restrictions.of(row.restrictions),
    )
    keyless = row.created_by == _NO_KEY
    return Rights(
        caller,
        key_revoked=not keyless and (row.key_id is None or row.revoked_at is not None),
        tenant_disabled=bool(row.disabled),
        tenant_deleted=row.deleted_at is not None,
    )
