"""Facts about the whole installation as name and value, each written once."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import installation

_INSERTS: Mapping[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


async def read(connection: AsyncConnection, name: str) -> str | None:
    return await connection.scalar(select(installation.c.value).where(installation.c.name == name))


async def write_once(connection: AsyncConnection, name: str, value: str) -> str:
    """Store a value unless there is one; return the stored value, which is the same for every process."""
    new = _INSERTS[connection.dialect.name](installation).values(name=name, value=value)
    await connection.execute(new.on_conflict_do_nothing())
    stored = await read(connection, name)
    if stored is None:
        raise LookupError(f"The row {name!r} of table installation disappeared after it was inserted.")
    return stored


async def replace(connection: AsyncConnection, name: str, value: str) -> None:
    """Overwrite an existing value."""
    await connection.execute(update(installation).where(installation.c.name == name).values(value=value))
