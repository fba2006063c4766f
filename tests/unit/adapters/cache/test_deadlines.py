"""Disk cache with slow stores, and versions after a failed fetch."""

import asyncio
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import DigestMismatch, StoreUnavailable
from adapters.stores.s3 import S3Store
from tests.support.s3server import Script, fake_credentials, scripted_server
from tests.support.watched_store import Clock, WatchedStore, fill, is_intact, kept, until


async def test_a_deadline_refuses_the_waiter_not_the_fetch(root: Path, store: WatchedStore, settled) -> None:
    slow, other = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, 10_000, fetches=1, fetch_s=0.05)
    store.gate.clear()
    results = await asyncio.gather(*(cache.lease(slow) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert all(result.retry_after for result in results)
    await until(lambda: cache.failures)
    with pytest.raises(StoreUnavailable):
        await cache.lease(slow)
    assert store.fetched == [slow.config_digest]
    # The late fetch does not occupy a place for good.
    task = asyncio.create_task(cache.lease(other))
    await until(lambda: store.active == 2)
    store.gate.set()
    await task
    await settled()
    async with await cache.lease(slow) as lease:
        assert is_intact(lease.path, slow)
    assert (cache.hits, cache.misses, cache.failures) == (1, 2, 1)


async def test_who_joined_a_dripping_download_gives_up_with_it(root: Path, store: WatchedStore, settled) -> None:
    key = store.publish(1)
    cache = DiskCache(root, store, 10_000, fetch_s=2)
    store.gate.clear()
    first = asyncio.create_task(cache.lease(key))
    await until(lambda: store.active)
    # The sleep is part of the scenario, not synchronisation: the second lease comes in mid-download.
    await asyncio.sleep(1)
    joined = asyncio.create_task(cache.lease(key))
    await asyncio.wait({first})
    await until(lambda: cache.failures)
    done, _ = await asyncio.wait({joined}, timeout=0.5)
    store.gate.set()
    outcomes = await asyncio.gather(first, joined, return_exceptions=True)
    await settled()
    assert done == {joined}
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
    # The download that finished late is kept.
    async with await cache.lease(key) as lease:
        assert is_intact(lease.path, key)


async def test_a_late_failed_fetch_leaves_nothing(root: Path, store: WatchedStore, settled) -> None:
    broken, dropped = store.publish(1), store.publish(2)
    store.wrong.add(broken.weights_digest)
    cache = DiskCache(root, store, 10_000, fetch_s=0.05)
    store.gate.clear()
    await asyncio.gather(cache.lease(broken), cache.lease(dropped), return_exceptions=True)
    await until(lambda: cache.failures == 2)
    await cache.drop(dropped)
    store.gate.set()
    await settled()
    assert (kept(root), cache.used_bytes, cache.failures) == (set(), 0, 2)


async def test_a_store_that_never_answers_gets_no_thread_without_end(root: Path, store: WatchedStore, settled) -> None:
    # More than 17, since on a busy machine a caller may give up before its fetch has begun.
    keys = [store.publish(number) for number in range(1, 61)]
    cache = DiskCache(root, store, 10**6, fetches=1, fetch_s=0.02)
    store.gate.clear()
    for key in keys:
        with pytest.raises(StoreUnavailable):
            await cache.lease(key)
    await until(lambda: cache.failures == 17)
    assert store.active == 17  # 16 late fetches, and the last one, which keeps its place
    store.gate.set()
    await settled()
    await fill(cache, *keys)
    assert len(kept(root)) == 60


async def test_a_failed_fetch_is_not_tried_again_at_once(root: Path, store: WatchedStore) -> None:
    key, same_bytes, clock = store.publish(1), store.publish(1, version_id=2), Clock()
    store.wrong.add(key.weights_digest)
    cache = DiskCache(root, store, 10_000, monotonic=clock)
    for pause in (2, 4):
        for _ in range(3):
            with pytest.raises(DigestMismatch) as caught:
                await cache.lease(key)
            assert caught.value.retry_after == pause
        clock.now += pause
    assert (cache.misses, cache.failures) == (2, 2)
    store.wrong.clear()
    clock.now -= 1
    with pytest.raises(DigestMismatch):
        await cache.lease(key)
    # A newer version with the same bytes is not affected, and its fetch serves the old version too.
    await fill(cache, same_bytes, key)
    assert (cache.hits, cache.misses) == (1, 3)


async def test_a_drop_forgets_the_failure(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    store.wrong.add(key.weights_digest)
    cache = DiskCache(root, store, 10_000)
    with pytest.raises(DigestMismatch):
        await cache.lease(key)
    store.wrong.clear()
    await cache.drop(key)
    await fill(cache, key)


async def test_an_abandoned_fetch_in_the_queue_is_skipped(root: Path, store: WatchedStore, settled) -> None:
    first, second = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, 10_000, fetches=1)
    store.gate.clear()
    tasks = [asyncio.create_task(cache.lease(key)) for key in (first, second)]
    await until(lambda: store.active)
    tasks[1].cancel()
    store.gate.set()
    await asyncio.wait(tasks)
    await settled()
    assert second.config_digest not in store.fetched
    assert (kept(root), cache.failures) == ({first.digest}, 0)


async def test_an_s3_server_that_stalls_is_given_up_at_the_deadline(
    root: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch, settled
) -> None:
    fake_credentials(monkeypatch)
    key = store.publish(1)
    with scripted_server(Script(stall=True)) as script:
        s3 = S3Store("bucket", "", endpoint_url=script.url, region="us-east-1", timeout_s=1)
        cache = DiskCache(root, s3, 10_000, fetch_s=0.1)
        with pytest.raises(StoreUnavailable) as caught:
            await cache.lease(key)
        assert caught.value.retry_after
        await until(lambda: cache.failures)
    await settled()
    assert (kept(root), cache.used_bytes, cache.failures) == (set(), 0, 1)
