"""Leases around loads: what the engine is asked to do, and in which order."""

import asyncio
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from adapters.stores.local import LocalStore
from app.engine.base import EngineEvent
from app.engine.loading import AdapterLoader
from app.errors import AdapterLoadFailed, EngineUnavailable
from tests.app.engine.conftest import PLACES, SLOTS, Host


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
    loader = AdapterLoader(host, cache, slots=1, places=1, notify=lambda _event: None)
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


async def test_events_say_what_came_and_went(
    loader: AdapterLoader, host: Host, events: list[EngineEvent], version
) -> None:
    for version_id in (1, 2, 3, 4):
        await loader.load(version(version_id))
    await loader.unload(2)
    host.broken = {9}
    with pytest.raises(AdapterLoadFailed):
        await loader.load(version(9))
    with pytest.raises(BlobNotFound):
        await loader.load(version(10, stored=False))
    assert [(event.kind, event.version_id) for event in events] == [
        ("load", 1),
        ("load", 2),
        ("load", 3),
        ("evict", 1),
        ("load", 4),
        ("unload", 2),
        ("load_failed", 9),
    ]
    assert all((event.seconds is not None) == event.kind.startswith("load") for event in events)


async def test_what_is_being_loaded_or_taken_out_is_held(loader: AdapterLoader, host: Host, version) -> None:
    host.may_load.clear()
    loading = asyncio.create_task(loader.load(version(1)))
    while not host.adds:
        await asyncio.sleep(0)
    assert loader.holds(1)
    host.may_load.set()
    await loading
    lease = await loader.lease("running", version(1))
    await loader.unload(1)
    assert loader.holds(1), "a request runs on it"
    lease.release()
    while host.held:
        assert loader.holds(1)
        await asyncio.sleep(0)
    assert not loader.holds(1)
