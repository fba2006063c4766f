"""Rows that the registry keeps for Idempotency-Key."""

import asyncio

from sqlalchemy import func, select

from app.database.session import Database
from app.database.tables import idempotency
from app.database.urls import database_url
from tests.support.site import Site


def idempotency_rows(site: Site) -> int:
    async def count() -> int:
        database = Database(database_url(site.settings))
        async with database.read() as connection:
            found: int | None = await connection.scalar(select(func.count()).select_from(idempotency))
        await database.close()
        return found or 0

    return asyncio.run(count())
