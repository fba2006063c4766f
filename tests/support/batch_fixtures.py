"""Fixtures of running batches: servers, and a tenant with a key that creates batches.

A test module loads them with ``pytest_plugins``, together with those of the registry.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import batches as support
from tests.support.batches import Owner, Servers
from tests.support.registry import Node


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    await servers.stop()


@pytest.fixture
async def pricing(node: Node) -> Owner:
    return await support.owner(node, "pricing")
