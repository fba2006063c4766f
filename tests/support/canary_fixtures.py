"""Fixtures of servers that run canaries, for ``pytest_plugins``."""

import pytest

from tests.support.canaries import ANY, Place, aliases
from tests.support.registry import Node


@pytest.fixture
async def place(node: Node) -> Place:
    """Server whose tenant ``pricing`` has versions 1, 2 and 3 of ``prices`` and the alias ``stable`` on 1."""
    await node.tenants.create("pricing", actor="cli")
    for content in ("a", "b", "c"):
        await node.publish("pricing", "prices", content)
    await aliases(node).set("pricing", "prices", "stable", {1: 100}, precondition=ANY, actor="key")
    return Place(node, "one")


@pytest.fixture
def other_place(place: Place, other_node: Node) -> Place:
    return Place(other_node, "two")
