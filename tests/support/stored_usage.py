"""Usage records that a test writes into the registry of a running server."""

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx

from app.database import usage
from app.database.session import Database
from app.database.tenants import find_tenant
from app.database.urls import database_url
from app.domain.usage import UsageRecord
from tests.support.site import Site, Unit

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
RANGE = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"}


def use(site: Site, admin: httpx.Client, unit: Unit, **values: Any) -> None:
    """Write the usage record of one request, as the server's ledger does."""
    key_id = unit.key.split("_")[1]
    plain = UsageRecord(uuid.uuid4().hex, AT, 0, key_id, None, 10, 4, 3, 0.1, 0.5, None, "stop", 200)

    async def write() -> None:
        database = Database(database_url(site.settings))
        async with database.write() as connection:
            tenant = await find_tenant(connection, unit.slug)
            assert tenant is not None
            await usage.add(connection, [replace(plain, tenant_id=tenant.id, **values)])
        await database.close()

    asyncio.run(write())
