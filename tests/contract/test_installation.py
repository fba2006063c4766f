"""Facts about the installation, on both databases: written once, read by every server."""

import asyncio

from app.database import installation
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


async def test_the_first_value_stands_for_everybody(node: Node) -> None:
    async def write(value: str) -> str:
        async with node.database.write() as connection:
            return await installation.write_once(connection, "id", value)

    values = await asyncio.gather(*(write(value) for value in "abc"))
    assert len(set(values)) == 1
    async with node.database.read() as connection:
        assert await installation.read(connection, "id") == values[0]
        assert await installation.read(connection, "other") is None


async def test_a_value_is_replaced_where_there_is_one(node: Node) -> None:
    async with node.database.write() as connection:
        await installation.write_once(connection, "id", "a")
        await installation.replace(connection, "id", "b")
        await installation.replace(connection, "other", "b")
        assert await installation.read(connection, "id") == "b"
        assert await installation.read(connection, "other") is None
