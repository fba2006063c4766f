import asyncio
import shutil
import stat
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import DiskFull, StorageError, StoreUnavailable
from tests.support.watched_store import WEIGHTS, WatchedStore, fill, is_intact, kept, until


async def test_a_lease_is_a_directory_named_by_the_digest(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    lease = await cache.lease(key)
    assert lease.path == root / key.digest
    assert is_intact(lease.path, key)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (root, lease.path, lease.path / WEIGHTS)] == [
        0o700,
        0o700,
        0o600,
    ]
    assert (cache.used_bytes, cache.hits, cache.misses, cache.evictions) == (key.size, 0, 1, 0)


async def test_a_second_lease_asks_the_store_for_nothing(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    await fill(cache, key, key)
    assert len(store.fetched) == 2  # its two files
    assert (cache.hits, cache.misses) == (1, 1)


async def test_callers_at_once_share_one_fetch(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    leases = await asyncio.gather(*(cache.lease(key) for _ in range(20)))
    assert len(store.fetched) == 2
    assert {lease.path for lease in leases} == {root / key.digest}


async def test_two_versions_with_the_same_bytes_share_one_directory(root: Path, store: WatchedStore) -> None:
    first, second = store.publish(1, version_id=7), store.publish(1, version_id=8)
    cache = DiskCache(root, store, first.size)
    kept_lease = await cache.lease(first)
    async with await cache.lease(second) as lease:
        assert lease.path == kept_lease.path
    assert cache.misses == 1
    with pytest.raises(DiskFull):
        await cache.lease(store.publish(2))


async def test_a_cancelled_caller_does_not_stop_the_fetch(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    store.gate.clear()
    tasks = [asyncio.create_task(cache.lease(key)) for _ in range(3)]
    await until(lambda: store.active)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    store.gate.set()
    leases = [await task for task in tasks[1:]]
    assert is_intact(leases[0].path, key)
    assert len(store.fetched) == 2
    # The cancelled lease holds nothing: once the others are released, the version can be dropped.
    for lease in leases:
        lease.release()
    await cache.drop(key)
    assert kept(root) == set()


async def test_a_fetch_that_nobody_waits_for_any_more_is_kept(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    store.gate.clear()
    task = asyncio.create_task(cache.lease(key))
    await until(lambda: store.active)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    await fill(cache, key)
    assert len(store.fetched) == 2


async def test_release_may_be_repeated(root: Path, store: WatchedStore) -> None:
    one, two = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, one.size)
    first, second = await cache.lease(one), await cache.lease(one)
    first.release()
    first.release()
    with pytest.raises(DiskFull):
        await cache.lease(two)
    second.release()
    await fill(cache, two)


async def test_drop_removes_at_once_or_with_the_last_lease(root: Path, store: WatchedStore, settled) -> None:
    one, two = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, 10_000)
    await fill(cache, one)
    leases = [await cache.lease(two), await cache.lease(two)]
    await cache.drop(one)
    await cache.drop(one)
    await cache.drop(two)
    assert kept(root) == {two.digest}
    leases[0].release()
    await settled()
    assert is_intact(leases[1].path, two)
    leases[1].release()
    await settled()
    assert (kept(root), cache.used_bytes) == (set(), 0)
    assert cache.evictions == 0


async def test_the_digests_are_those_of_bytes_that_are_here(root: Path, store: WatchedStore, settled) -> None:
    one, two, three = store.publish(1), store.publish(2), store.publish(3)
    cache = DiskCache(root, store, 100_000)
    fetching = asyncio.create_task(cache.lease(one))
    await asyncio.sleep(0)
    assert cache.digests == set()
    held = await fetching
    await fill(cache, two, three)
    assert cache.digests == {one.digest, two.digest, three.digest}
    await cache.drop(one)
    await cache.drop(two)
    assert cache.digests == {three.digest}
    held.release()
    await settled()
    # A new process has not verified them yet.
    assert DiskCache(root, store, 100_000).digests == {three.digest}


async def test_a_lease_after_a_drop_keeps_the_bytes(root: Path, store: WatchedStore, settled) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    first = await cache.lease(key)
    await cache.drop(key)
    second = await cache.lease(key)
    first.release()
    second.release()
    await settled()
    assert kept(root) == {key.digest}


async def test_a_version_dropped_while_it_is_fetched_for_nobody_goes(root: Path, store: WatchedStore, settled) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    store.gate.clear()
    task = asyncio.create_task(cache.lease(key))
    await until(lambda: store.active)
    task.cancel()
    await cache.drop(key)
    store.gate.set()
    await settled()
    assert (kept(root), cache.used_bytes) == (set(), 0)


async def test_errors_name_no_path(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    shutil.rmtree(root)
    with pytest.raises(StorageError) as caught:
        await cache.lease(key)
    assert str(root) not in str(caught.value)


def test_a_root_that_is_a_file_cannot_be_opened(tmp_path: Path, store: WatchedStore) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        DiskCache(tmp_path / "file", store, 10_000)


async def test_a_cache_says_what_its_disk_holds_by_the_disk_itself(root: Path, store: WatchedStore) -> None:
    key, other = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, 10_000)
    assert not await cache.holds(key)
    await fill(cache, key)
    assert await cache.holds(key)
    assert not await cache.holds(other)
    await cache.drop(key)
    assert not await cache.holds(key)


async def test_half_a_removal_is_finished_by_the_next(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000)
    await fill(cache, key)
    (root / key.digest).rename(root / "tmp" / f"{key.digest}.of-a-process-that-died")
    assert await DiskCache(root, store, 10_000).holds(key)
    fresh = DiskCache(root, store, 10_000)
    await fresh.drop(key)
    assert not await fresh.holds(key)
    assert list((root / "tmp").iterdir()) == []


async def test_a_sweep_removes_what_nobody_needs_or_reads(root: Path, store: WatchedStore) -> None:
    needed, unneeded, read = store.publish(1), store.publish(2), store.publish(3)
    await fill(DiskCache(root, store, 10_000), needed, unneeded, read)
    cache = DiskCache(root, store, 10_000)
    async with await cache.lease(read):
        assert await cache.sweep({needed.digest}) == (unneeded.digest,)
        assert kept(root) == {needed.digest, read.digest}
        assert cache.used_bytes == needed.size + read.size
