"""Token prices, stored per million tokens, and their factor for batches; an adapter's price outlives the adapter."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import adapters, prices, tenants
from app.domain.money import PRICED_TOKENS, Price


async def all_prices(connection: AsyncConnection) -> dict[str, Price]:
    """Return all prices by subject: ``default``, ``base`` or ``adapter:7``."""
    rows = await connection.execute(select(prices))
    return {row.subject: _price(row) for row in rows}


async def set_price(connection: AsyncConnection, subject: str, price: Price | None) -> None:
    """Set the price of a subject; None removes it."""
    await connection.execute(delete(prices).where(prices.c.subject == subject))
    if price is not None:
        values = {"prompt": price.prompt, "cached": price.cached, "output": price.output}
        per_million = {name: amount * PRICED_TOKENS for name, amount in values.items()}
        await connection.execute(insert(prices).values(subject=subject, batch=price.batch, **per_million))


async def adapter_names(connection: AsyncConnection) -> Mapping[int, str]:
    """Return ``tenant/adapter`` of every existing adapter, by id."""
    statement = (
        select(adapters.c.id, (tenants.c.slug + "/" + adapters.c.slug).label("name"))
        .join_from(adapters, tenants, adapters.c.tenant_id == tenants.c.id)
        .where(adapters.c.deleted_at.is_(None))
    )
    return {row.id: row.name for row in await connection.execute(statement)}


def _price(row: Row[Any]) -> Price:
    prompt, cached, output = (amount // PRICED_TOKENS for amount in (row.prompt, row.cached, row.output))
    return Price(prompt, cached, output, row.batch)
