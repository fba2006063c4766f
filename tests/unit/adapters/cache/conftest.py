import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.watched_store import WatchedStore, settle


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WatchedStore]:
    store = WatchedStore(tmp_path / "store")
    yield store
    store.gate.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
async def settled() -> Callable[[], Awaitable[None]]:
    before = asyncio.all_tasks()
    return lambda: settle(before)
