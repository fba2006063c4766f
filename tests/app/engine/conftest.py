"""An engine that only remembers what it holds, and versions in a local store."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.engine.base import EngineEvent
from app.engine.loading import AdapterLoader
from app.errors import AdapterLoadFailed, EngineUnavailable

SLOTS, PLACES = 2, 3

Versions = Callable[..., VersionKey]


class Host:
    """An engine that checks what real ones die of: no file under a load, one adapter more than places.

    Attributes:
        pinned: what it was told to keep in a slot.
        broken: versions that it cannot load.
        dead: whether it can do nothing any more.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.pinned: set[int] = set()
        self.adds: list[int] = []
        self.broken: set[int] = set()
        self.dead = False
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def add_adapter(self, key: VersionKey, path: Path) -> None:
        self.adds.append(key.version_id)
        await self.may_load.wait()
        self._check_alive()
        assert (path / "adapter_model.safetensors").read_bytes()
        if key.version_id in self.broken:
            raise AdapterLoadFailed("broken", version_id=key.version_id)
        self.held.add(key.version_id)
        assert len(self.held) <= PLACES

    async def remove_adapter(self, version_id: int) -> None:
        await asyncio.sleep(0)
        self.held.discard(version_id)
        self.pinned.discard(version_id)

    async def pin_adapter(self, version_id: int) -> None:
        await asyncio.sleep(0)
        self._check_alive()
        assert version_id in self.held
        self.pinned.add(version_id)

    async def unpin_adapter(self, version_id: int) -> None:
        await asyncio.sleep(0)
        self._check_alive()
        self.pinned.discard(version_id)

    def _check_alive(self) -> None:
        if self.dead:
            raise EngineUnavailable("dead")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def events() -> list[EngineEvent]:
    return []


@pytest.fixture
def loader(host: Host, store: LocalStore, events: list[EngineEvent], tmp_path: Path) -> AdapterLoader:
    cache = DiskCache(tmp_path / "cache", store, 2**20)
    return AdapterLoader(host, cache, slots=SLOTS, places=PLACES, notify=events.append)


@pytest.fixture
def version(store: LocalStore, tmp_path: Path) -> Versions:
    def make(version_id: int, *, stored: bool = True) -> VersionKey:
        digests = []
        for content in (f"config {version_id}".encode(), f"weights {version_id}".encode()):
            digest = hashlib.sha256(content).hexdigest()
            (tmp_path / digest).write_bytes(content)
            if stored:
                store.put(digest, tmp_path / digest)
            digests.append((digest, len(content)))
        (config, config_bytes), (weights, weights_bytes) = digests
        return VersionKey(version_id, config, weights, config_bytes, weights_bytes)

    return make
