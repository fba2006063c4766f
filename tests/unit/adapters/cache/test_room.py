import asyncio
from pathlib import Path

import pytest

from adapters.cache import DiskCache, Lease
from adapters.errors import DiskFull
from tests.support.watched_store import Clock, WatchedStore, fill, is_intact, kept


async def test_the_least_used_goes_first(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, one.size * 2)
    await fill(cache, one, two, one, three)
    assert kept(root) == {one.digest, three.digest}
    assert (cache.evictions, cache.used_bytes) == (1, one.size + three.size)


async def test_leased_versions_are_never_evicted(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, one.size * 2)
    leases = [await cache.lease(one), await cache.lease(two)]
    with pytest.raises(DiskFull):
        await cache.lease(three)
    assert kept(root) == {one.digest, two.digest}
    leases[1].release()
    await fill(cache, three)
    assert kept(root) == {one.digest, three.digest}


async def test_room_that_would_not_do_is_not_made(root: Path, store: WatchedStore) -> None:
    one, two, large = store.publish(1), store.publish(2), store.publish(3, 1800)
    cache = DiskCache(root, store, one.size * 2)
    lease = await cache.lease(one)
    await fill(cache, two)
    with pytest.raises(DiskFull):
        await cache.lease(large)
    assert kept(root) == {one.digest, two.digest}
    lease.release()


async def test_a_version_above_the_budget_is_refused_unfetched(root: Path, store: WatchedStore) -> None:
    cache = DiskCache(root, store, 100)
    with pytest.raises(DiskFull) as caught:
        await cache.lease(store.publish(1))
    assert store.fetched == []
    assert "100" in str(caught.value)


async def test_fetches_at_once_share_the_budget(root: Path, store: WatchedStore) -> None:
    keys = [store.publish(number) for number in range(1, 7)]
    cache = DiskCache(root, store, keys[0].size * 3)
    leases = await asyncio.gather(*(cache.lease(key) for key in keys), return_exceptions=True)
    assert sum(isinstance(lease, Lease) for lease in leases) == 3
    assert sum(isinstance(lease, DiskFull) for lease in leases) == 3
    assert cache.used_bytes == keys[0].size * 3


async def test_a_version_evicted_and_wanted_again_at_once_is_whole(root: Path, store: WatchedStore) -> None:
    one, two = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, one.size)
    for _ in range(20):
        async with await cache.lease(one) as lease:
            assert is_intact(lease.path, one)
        async with await cache.lease(two) as lease:
            assert is_intact(lease.path, two)
    assert kept(root) == {two.digest}


async def test_a_version_used_often_outlives_one_used_lately(root: Path, store: WatchedStore) -> None:
    often, lately, new = (store.publish(number) for number in (1, 2, 3))
    clock = Clock()
    cache = DiskCache(root, store, often.size * 2, monotonic=clock)
    await fill(cache, *[often] * 10)
    clock.now += 600
    await fill(cache, lately, new)
    assert kept(root) == {often.digest, new.digest}


async def test_yesterdays_favourite_goes(root: Path, store: WatchedStore) -> None:
    often, lately, new = (store.publish(number) for number in (1, 2, 3))
    clock = Clock()
    cache = DiskCache(root, store, often.size * 2, monotonic=clock)
    await fill(cache, *[often] * 10)
    clock.now += 24 * 3600
    await fill(cache, lately, new)
    assert kept(root) == {lately.digest, new.digest}


async def test_eviction_prefers_bytes_freed_per_reload_cost(root: Path, store: WatchedStore) -> None:
    small, large, new = store.publish(1, 400), store.publish(2, 40_000), store.publish(3, 400)
    cache = DiskCache(root, store, small.size + large.size)
    await fill(cache, large, small, new)
    assert kept(root) == {small.digest, new.digest}


async def test_a_tenant_with_hundreds_of_adapters_evicts_its_own(root: Path, store: WatchedStore) -> None:
    leased, used, *scanned = [store.publish(number) for number in range(1, 303)]
    cache = DiskCache(root, store, leased.size * 4)
    lease = await cache.lease(leased, share="modest")
    await fill(cache, *[used] * 5)
    for key in scanned:
        (await cache.lease(key, share="hostile")).release()
    assert kept(root) >= {leased.digest, used.digest}
    assert cache.evictions >= 298
    assert is_intact(lease.path, leased)
