"""Fake workers that track their adapters, and versions in a local store."""

import hashlib
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.engine.port import EngineEvent
from app.engine.residency.adapter_loader import AdapterLoader
from tests.support.workers import Desk, Versions, Workers


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def events() -> list[EngineEvent]:
    return []


@pytest.fixture
def cache(store: LocalStore, tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", store, 2**20)


@pytest.fixture
def desk(workers: Workers, cache: DiskCache, events: list[EngineEvent]) -> Desk:
    return Desk(workers, cache, events)


@pytest.fixture
def loader(desk: Desk) -> AdapterLoader:
    return desk.loader


@pytest.fixture
def version(store: LocalStore, tmp_path: Path) -> Versions:
    def make(version_id: int, *, stored: bool = True) -> VersionKey:
        digests = []
        for content in (f"config {version_id}".encode(), f"weights {version_id:08d}".encode()):
            digest = hashlib.sha256(content).hexdigest()
            if stored and store.size(digest) is None:
                (tmp_path / digest).write_bytes(content)
                store.put(digest, tmp_path / digest)
            digests.append((digest, len(content)))
        (config, config_bytes), (weights, weights_bytes) = digests
        return VersionKey(version_id, config, weights, config_bytes, weights_bytes)

    return make
