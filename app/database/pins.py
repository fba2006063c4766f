"""Pins: versions that keep a slot."""

from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import VersionKey
from app.database.filters import servable
from app.database.tables import adapters, pins, tenants, versions
from app.domain.adapters import VersionState
from app.domain.pins import Pin

#: Key of the advisory lock, unique in this database.
_ADVISORY_LOCK = 7_365_123_020

_PINNED: Select[Any] = (
    select(
        versions.c.id,
        versions.c.config_digest,
        versions.c.weights_digest,
        versions.c.config_bytes,
        versions.c.weights_bytes,
        versions.c.number,
        adapters.c.slug.label("adapter"),
        tenants.c.slug.label("tenant"),
        pins.c.created_at,
        pins.c.created_by,
    )
    .join_from(pins, versions, pins.c.version_id == versions.c.id)
    .join(adapters, versions.c.adapter_id == adapters.c.id)
    .join(tenants, adapters.c.tenant_id == tenants.c.id)
    # A version that is out of service needs no slot.
    .where(versions.c.state == VersionState.READY)
    .order_by(pins.c.created_at, pins.c.version_id)
)


async def lock_pins(connection: AsyncConnection) -> None:
    """Block other transactions that pin until this one ends; lock the tenant's row first."""
    # SQLite has a single writer.
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})


async def list_pins(connection: AsyncConnection, base_digest: str, *, head: bool) -> list[Pin]:
    """List the pins of all tenants for a server of this base, oldest first.

    Args:
        base_digest: digest of the base.
        head: True if the server serves adapters of the head.
    """
    return [_pin(row) for row in await connection.execute(_PINNED.where(*servable(base_digest, head=head)))]


async def find_pin(connection: AsyncConnection, version_id: int) -> Pin | None:
    row = (await connection.execute(_PINNED.where(versions.c.id == version_id))).one_or_none()
    return None if row is None else _pin(row)


async def insert_pin(connection: AsyncConnection, version_id: int, *, at: datetime, actor: str) -> None:
    await connection.execute(insert(pins).values(version_id=version_id, created_at=at, created_by=actor))


async def remove_pin(connection: AsyncConnection, version_id: int) -> bool:
    """Unpin a version; False if it was not pinned."""
    return bool((await connection.execute(delete(pins).where(pins.c.version_id == version_id))).rowcount)


def _pin(row: Row[Any]) -> Pin:
    key = VersionKey(row.id, row.config_digest, row.weights_digest, row.config_bytes, row.weights_bytes)
    return Pin(key, row.tenant, row.adapter, row.number, row.created_at, row.created_by)
