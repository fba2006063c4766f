import asyncio
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound, DigestMismatch, DiskFull, StoreUnavailable
from adapters.stores.s3 import S3Store
from tests.support.s3server import Script, fake_credentials, s3_client, s3_server, scripted_server
from tests.support.watched_store import Clock, WatchedStore, fill, is_intact, kept, until

PROJECT = Path(__file__).parents[4]
LIMITED_LEASE = """
import asyncio, json, resource, sys
from pathlib import Path
from adapters.cache import DiskCache
from adapters.errors import AdapterError
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore

store, root = LocalStore(Path(sys.argv[1])), Path(sys.argv[2])
small, large = (VersionKey(**fields) for fields in json.load(sys.stdin))

async def main():
    cache = DiskCache(root, store, 10**9)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        await cache.lease(large)
    except AdapterError as error:
        failure = [type(error).__name__, str(error)]
    used = cache.used_bytes
    (await cache.lease(small)).release()
    print(json.dumps([failure, used, cache.used_bytes]))

asyncio.run(main())
"""


async def test_a_store_that_stalls_does_not_hold_every_thread(root: Path, store: WatchedStore) -> None:
    keys = [store.publish(number) for number in range(40)]
    cache = DiskCache(root, store, 10**6)
    await fill(cache, keys[0])
    store.gate.clear()
    tasks = [asyncio.create_task(cache.lease(key)) for key in keys[1:]]
    await until(lambda: store.active == 8)
    async with asyncio.timeout(60):  # without a free thread it would hang
        await asyncio.to_thread(lambda: "another part of the server")
    await fill(cache, keys[0])
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.most_active == 8


async def test_a_fetch_that_fails_when_nobody_waits_is_forgotten(root: Path, store: WatchedStore, settled) -> None:
    key = store.publish(1)
    store.wrong.add(key.weights_digest)
    cache = DiskCache(root, store, 10_000)
    store.gate.clear()
    task = asyncio.create_task(cache.lease(key))
    await until(lambda: store.active)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    await settled()
    assert (kept(root), cache.used_bytes) == (set(), 0)


@pytest.mark.parametrize("which", ["config_digest", "weights_digest"])
async def test_wrong_bytes_from_the_store_are_never_kept(root: Path, store: WatchedStore, which: str) -> None:
    key = store.publish(1)
    store.wrong.add(getattr(key, which))
    clock = Clock()
    cache = DiskCache(root, store, 10_000, monotonic=clock)
    results = await asyncio.gather(*(cache.lease(key) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [DigestMismatch] * 3
    assert (kept(root), cache.used_bytes) == (set(), 0)
    store.wrong.clear()
    clock.now += 2
    async with await cache.lease(key) as lease:
        assert is_intact(lease.path, key)


async def test_a_missing_blob_leaves_nothing(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    store.delete(key.weights_digest)
    cache = DiskCache(root, store, 10_000)
    with pytest.raises(BlobNotFound):
        await cache.lease(key)
    assert (kept(root), cache.used_bytes) == (set(), 0)


@pytest.mark.parametrize("stall", [True, False])
async def test_a_store_that_stalls_or_refuses_leaves_nothing(
    root: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch, stall: bool
) -> None:
    fake_credentials(monkeypatch)
    key = store.publish(1)
    with scripted_server(Script([(403, b"")], stall=stall)) as script:
        s3 = S3Store("bucket", "", endpoint_url=script.url, region="us-east-1", timeout_s=0.1)
        cache = DiskCache(root, s3, 10_000)
        with pytest.raises(StoreUnavailable):
            await cache.lease(key)
    assert (kept(root), cache.used_bytes) == (set(), 0)


def test_a_disk_that_fills_up_half_way_leaves_nothing(root: Path, store: WatchedStore) -> None:
    """The kernel refuses the write for real: a file size limit needs no privileges, unlike a full filesystem."""
    small, large = store.publish(1), store.publish(2, 300_000)
    command = [sys.executable, "-c", LIMITED_LEASE, str(root.parent / "store"), str(root)]
    keys = json.dumps([asdict(small), asdict(large)])
    result = subprocess.run(command, cwd=PROJECT, input=keys, stdout=subprocess.PIPE, text=True, check=True)
    (kind, message), used_after_failure, used = json.loads(result.stdout)
    assert kind == "DiskFull"
    assert str(root) not in message
    assert (used_after_failure, used) == (0, small.size)
    assert kept(root) == {small.digest}


async def test_a_lease_tells_how_long_it_waited_for_bytes(root: Path, store: WatchedStore) -> None:
    key, clock = store.publish(1), Clock()
    cache = DiskCache(root, store, 10_000, monotonic=clock)
    store.gate.clear()
    task = asyncio.create_task(cache.lease(key))
    await until(lambda: store.active)
    clock.now += 3
    store.gate.set()
    assert (await task).fetch_s == 3
    assert (await cache.lease(key)).fetch_s == 0


async def test_one_tenant_cannot_take_all_fetches(root: Path, store: WatchedStore) -> None:
    keys = [store.publish(number) for number in range(1, 31)]
    cache = DiskCache(root, store, 10**6, fetches=4)
    store.gate.clear()
    greedy = [asyncio.create_task(cache.lease(key, share="greedy")) for key in keys[:-1]]
    await until(lambda: store.active == 2)
    modest = asyncio.create_task(cache.lease(keys[-1], share="modest"))
    await until(lambda: store.active == 3)
    assert keys[-1].config_digest in store.fetched
    store.gate.set()
    await asyncio.gather(modest, *greedy)


async def test_spare_work_takes_free_room_only(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, one.size * 2, fetches=1)
    await fill(cache, one)
    store.gate.clear()
    spare, wanted = (asyncio.create_task(cache.lease(key, share=share)) for key, share in ((two, None), (three, "a")))
    await until(lambda: store.active)
    store.gate.set()
    # The background lease came first; the tenant's lease evicts to get its room.
    (await spare).release()
    (await wanted).release()
    with pytest.raises(DiskFull):
        await cache.lease(one, share=None)
    assert kept(root) == {two.digest, three.digest}


async def test_spare_work_is_hurried_once_somebody_waits_for_it(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, 10_000, fetches=1)
    store.gate.clear()
    tasks = [asyncio.create_task(cache.lease(key, share=share)) for key, share in ((one, "a"), (two, None))]
    tasks += [asyncio.create_task(cache.lease(three, share=share)) for share in (None, "b")]
    await until(lambda: store.active)
    store.gate.set()
    await asyncio.gather(*tasks)
    assert [digest for digest in store.fetched if digest in (two.config_digest, three.config_digest)] == [
        three.config_digest,
        two.config_digest,
    ]


async def test_background_work_without_room_is_dropped(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, one.size * 2, fetches=1)
    store.gate.clear()
    first = asyncio.create_task(cache.lease(one))
    await until(lambda: store.active)
    spare = asyncio.create_task(cache.lease(three, share=None))
    second = asyncio.create_task(cache.lease(two))
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(first, second)
    with pytest.raises(DiskFull):
        await spare
    assert kept(root) == {one.digest, two.digest}


async def test_versions_come_from_an_s3_server_in_parallel(root: Path, store: WatchedStore, tmp_path: Path) -> None:
    keys = [store.publish(number, 50_000) for number in range(1, 13)]
    with s3_server() as url:
        s3_client(url).create_bucket(Bucket="bucket")
        s3 = S3Store("bucket", "", endpoint_url=url, region="us-east-1")
        for digest in {digest for key in keys for digest in (key.config_digest, key.weights_digest)}:
            store.fetch(digest, tmp_path / digest)
            s3.put(digest, tmp_path / digest)
        cache = DiskCache(root, s3, 10**6)
        leases = await asyncio.gather(*(cache.lease(key) for key in keys))
        assert all(is_intact(lease.path, key) for lease, key in zip(leases, keys, strict=True))
    assert (cache.misses, cache.failures) == (12, 0)
