"""Leases around loads: what the engine is asked to do, and in which order."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.engine.loading import AdapterLoader
from app.errors import AdapterLoadFailed, EngineUnavailable

SLOTS, PLACES = 2, 3


class Host:
    """An engine that checks what real ones die of: no file under a load, one adapter more than places."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.adds: list[int] = []
        self.broken: set[int] = set()
        self.may_load = asyncio.Event()
        self.may_load.set()

    async def add_adapter(self, key: VersionKey, path: Path) -> None:
        self.adds.append(key.version_id)
        await self.may_load.wait()
        assert (path / "adapter_model.safetensors").read_bytes()
        if key.version_id in self.broken:
            raise AdapterLoadFailed("broken", version_id=key.version_id)
        self.held.add(key.version_id)
        assert len(self.held) <= PLACES

    async def remove_adapter(self, version_id: int) -> None:
        await asyncio.sleep(0)
        self.held.discard(version_id)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def loader(host: Host, store: LocalStore, tmp_path: Path) -> AdapterLoader:
    return AdapterLoader(host, DiskCache(tmp_path / "cache", store, 2**20), slots=SLOTS, places=PLACES)


@pytest.fixture
def version(store: LocalStore, tmp_path: Path):
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


async def test_many_first_requests_load_once(loader: AdapterLoader, host: Host, version) -> None:
    leases = await asyncio.gather(*[loader.lease(f"r{n}", version(1)) for n in range(20)])
    assert host.adds == [1]
    for lease in leases:
        lease.release()
        lease.release()
    assert host.held == {1}, "an adapter stays until its place is needed"


async def test_whoever_started_the_load_may_go_away(loader: AdapterLoader, host: Host, version) -> None:
    host.may_load.clear()
    first = asyncio.create_task(loader.lease("first", version(1)))
    second = asyncio.create_task(loader.lease("second", version(1)))
    while not host.adds:
        await asyncio.sleep(0)
    first.cancel()
    host.may_load.set()
    (await second).release()
    assert host.adds == [1]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_failed_load_fails_all_who_wait_and_frees_its_place(loader: AdapterLoader, host: Host, version) -> None:
    host.broken = {1}
    results = await asyncio.gather(*[loader.lease(f"r{n}", version(1)) for n in range(3)], return_exceptions=True)
    assert all(isinstance(result, AdapterLoadFailed) for result in results)
    assert loader.resident == 0
    for version_id in range(2, 8):
        (await loader.lease(f"other {version_id}", version(version_id))).release()


async def test_the_least_recently_used_leaves_and_a_leased_one_never(
    loader: AdapterLoader, host: Host, version
) -> None:
    held = await loader.lease("held", version(1))
    for version_id in (2, 3, 4, 5):
        (await loader.lease(f"r{version_id}", version(version_id))).release()
    assert host.held == {1, 4, 5}
    held.release()


async def test_no_more_distinct_adapters_run_than_slots(loader: AdapterLoader, host: Host, version) -> None:
    running = [await loader.lease(f"r{version_id}", version(version_id)) for version_id in range(1, SLOTS + 1)]
    waiting = asyncio.create_task(loader.lease("third", version(3)))
    while not loader.waiting:
        await asyncio.sleep(0)
    assert 3 not in host.adds
    running[0].release()
    (await waiting).release()


async def test_missing_bytes_hold_nothing_back(loader: AdapterLoader, host: Host, version) -> None:
    for attempt in range(PLACES + 1):
        with pytest.raises(BlobNotFound):
            await loader.lease(f"missing {attempt}", version(9, stored=False))
    assert (loader.resident, loader.waiting, host.adds) == (0, 0, [])


async def test_a_deleted_version_leaves_with_its_last_request(loader: AdapterLoader, host: Host, version) -> None:
    lease = await loader.lease("running", version(1))
    await loader.unload(1)
    assert host.held == {1}
    lease.release()
    while host.held:
        await asyncio.sleep(0)
    assert loader.resident == 0


async def test_closing_refuses_those_who_wait_and_gives_the_files_back(
    host: Host, store: LocalStore, tmp_path: Path, version
) -> None:
    cache = DiskCache(tmp_path / "cache", store, 2**20)
    loader = AdapterLoader(host, cache, slots=1, places=1)
    await loader.lease("running", version(1))
    waiting = asyncio.create_task(loader.lease("waiting", version(2)))
    while not loader.waiting:
        await asyncio.sleep(0)
    await loader.close()
    with pytest.raises(EngineUnavailable):
        await waiting
    with pytest.raises(EngineUnavailable):
        await loader.lease("late", version(3))
    for version_id in (1, 2, 3):
        await cache.drop(version(version_id))
    assert cache.used_bytes == 0
