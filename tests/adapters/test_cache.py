import asyncio
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.cache import DiskCache, Lease
from adapters.errors import BlobNotFound, DigestMismatch, DiskFull, StorageError, StoreUnavailable
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from adapters.stores.s3 import S3Store
from tests.s3server import Script, fake_credentials, scripted_server

PROJECT = Path(__file__).parents[2]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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


class WatchedStore:
    """A real store whose fetches can be counted, held up and spoilt.

    Attributes:
        fetched: digests asked for.
        gate: fetches wait until it is set.
        wrong: digests of which other bytes are delivered.
        active, most_active: fetches under way, now and at most.
    """

    def __init__(self, root: Path) -> None:
        self.real = LocalStore(root)
        self.fetched: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.wrong: set[str] = set()
        self.active = self.most_active = 0
        self._lock = threading.Lock()

    def fetch(self, digest: str, destination: Path) -> None:
        with self._lock:
            self.fetched.append(digest)
            self.active += 1
            self.most_active = max(self.active, self.most_active)
        try:
            self.gate.wait()
            self.real.fetch(digest, destination)
            if digest in self.wrong:
                destination.write_bytes(b"x" * destination.stat().st_size)
        finally:
            with self._lock:
                self.active -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def publish(self, number: int, size: int = 1000, *, version_id: int | None = None) -> VersionKey:
        """Put a version whose weights have the given size in bytes."""
        blobs = [f'{{"r": {number}}}'.encode(), number.to_bytes(4, "big") * (size // 4)]
        digests = [hashlib.sha256(blob).hexdigest() for blob in blobs]
        for blob, digest in zip(blobs, digests, strict=True):
            with tempfile.NamedTemporaryFile() as source:
                source.write(blob)
                source.flush()
                self.real.put(digest, Path(source.name))
        return VersionKey(version_id or number, *digests, *map(len, blobs))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WatchedStore]:
    store = WatchedStore(tmp_path / "store")
    yield store
    store.gate.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


async def settle(tasks_of_others: Set[asyncio.Task[Any]] = frozenset()) -> None:
    """Wait for what the cache does behind the callers' backs."""
    while tasks := asyncio.all_tasks() - tasks_of_others - {asyncio.current_task()}:
        await asyncio.wait(tasks)


@pytest.fixture
async def settled() -> Callable[[], Awaitable[None]]:
    before = asyncio.all_tasks()
    return lambda: settle(before)


def kept(root: Path) -> set[str]:
    """Digests on the disk; nothing half-made may lie about."""
    assert list((root / "tmp").iterdir()) == []
    return {path.name for path in root.iterdir()} - {"tmp"}


def is_intact(path: Path, key: VersionKey) -> bool:
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    return digests == {CONFIG: key.config_digest, WEIGHTS: key.weights_digest}


async def fill(cache: DiskCache, *keys: VersionKey) -> None:
    for key in keys:
        (await cache.lease(key)).release()


async def until(condition: Any) -> None:
    """Let the other tasks and threads get there."""
    while not condition():
        await asyncio.sleep(0.001)


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


async def test_a_cancelled_caller_stops_neither_the_fetch_nor_the_others(root: Path, store: WatchedStore) -> None:
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
    # The cancelled one holds nothing: with the others gone the version may be evicted.
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


async def test_the_least_recently_used_goes_first(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    cache = DiskCache(root, store, one.size * 2)
    lease = await cache.lease(one)
    await fill(cache, two)
    lease.release()
    await fill(cache, three)
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


async def test_a_version_larger_than_the_budget_is_refused_before_it_is_fetched(
    root: Path, store: WatchedStore
) -> None:
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


async def test_a_store_that_stalls_does_not_hold_every_thread(root: Path, store: WatchedStore) -> None:
    keys = [store.publish(number) for number in range(40)]
    cache = DiskCache(root, store, 10**6)
    await fill(cache, keys[0])
    store.gate.clear()
    tasks = [asyncio.create_task(cache.lease(key)) for key in keys[1:]]
    await until(lambda: store.active >= 3)
    async with asyncio.timeout(60):  # or it would hang
        await asyncio.to_thread(lambda: "another part of the server")
    await fill(cache, keys[0])
    store.gate.set()
    await asyncio.gather(*tasks)
    assert store.most_active == 3


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


@pytest.mark.parametrize("which", ["config_digest", "weights_digest"])
async def test_wrong_bytes_from_the_store_are_never_kept(root: Path, store: WatchedStore, which: str) -> None:
    key = store.publish(1)
    store.wrong.add(getattr(key, which))
    cache = DiskCache(root, store, 10_000)
    results = await asyncio.gather(*(cache.lease(key) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [DigestMismatch] * 3
    assert (kept(root), cache.used_bytes) == (set(), 0)
    store.wrong.clear()
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


async def test_what_an_earlier_process_left_is_used_without_a_fetch(root: Path, store: WatchedStore) -> None:
    key = store.publish(1)
    await fill(DiskCache(root, store, 10_000), key)
    store.fetched.clear()
    cache = DiskCache(root, store, 10_000)
    assert cache.used_bytes == key.size
    await fill(cache, key)
    assert store.fetched == []
    assert (cache.hits, cache.misses) == (1, 0)


async def test_what_was_used_longest_ago_goes_first_after_a_restart(root: Path, store: WatchedStore) -> None:
    one, two, three = (store.publish(number) for number in (1, 2, 3))
    await fill(DiskCache(root, store, 10_000), one, two)
    os.utime(root / two.digest, (1, 1))
    cache = DiskCache(root, store, one.size * 2)
    await fill(cache, three)
    assert kept(root) == {one.digest, three.digest}


async def test_a_smaller_budget_than_before_is_met_by_the_next_fetch(root: Path, store: WatchedStore) -> None:
    keys = [store.publish(number) for number in range(1, 6)]
    await fill(DiskCache(root, store, 10_000), *keys[:4])
    cache = DiskCache(root, store, keys[0].size * 2)
    await fill(cache, keys[4])
    assert len(kept(root)) == 2
    assert cache.used_bytes == keys[0].size * 2


def flip_a_byte(path: Path) -> None:
    data = bytearray((path / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    (path / WEIGHTS).write_bytes(data)


def replace_by_a_directory(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / WEIGHTS).mkdir()


TAMPERINGS = {
    "a byte": flip_a_byte,
    "torn": lambda path: os.truncate(path / WEIGHTS, 10),
    "grown": lambda path: (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes() + b"more"),
    "other config": lambda path: (path / CONFIG).write_bytes(b'{"r": 9}'),
    "missing": lambda path: (path / CONFIG).unlink(),
    "an empty directory": lambda path: [file.unlink() for file in path.iterdir()],
    "a third file": lambda path: (path / "added_tokens.json").touch(),
    "a directory for a file": replace_by_a_directory,
}


@pytest.mark.parametrize("how", TAMPERINGS)
async def test_what_was_tampered_with_between_processes_is_fetched_again(
    root: Path, store: WatchedStore, how: str
) -> None:
    key = store.publish(1)
    await fill(DiskCache(root, store, 10_000), key)
    TAMPERINGS[how](root / key.digest)
    cache = DiskCache(root, store, 10_000)
    async with await cache.lease(key) as lease:
        assert is_intact(lease.path, key)
    assert (cache.hits, cache.misses, cache.used_bytes) == (0, 1, key.size)
    assert kept(root) == {key.digest}


async def test_strange_files_in_the_root_are_left_alone(root: Path, store: WatchedStore, tmp_path: Path) -> None:
    DiskCache(root, store, 10_000)
    (root / "notes.txt").write_text("mine")
    shutil.copytree(root, root / "ABC")
    (root / ("a" * 64)).symlink_to(tmp_path)
    cache = DiskCache(root, store, 10_000)
    assert cache.used_bytes == 0
    await fill(cache, store.publish(1))
    assert (root / "notes.txt").read_text() == "mine"


async def test_opening_sweeps_what_a_dead_process_left_a_day_ago(root: Path, store: WatchedStore) -> None:
    DiskCache(root, store, 10_000)
    two_days_ago = time.time() - 2 * 24 * 3600
    for name in ("old", "young"):
        (root / "tmp" / name).mkdir()
        (root / "tmp" / name / WEIGHTS).touch()
    os.utime(root / "tmp" / "old", (two_days_ago, two_days_ago))
    DiskCache(root, store, 10_000)
    assert [path.name for path in (root / "tmp").iterdir()] == ["young"]


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


async def test_a_version_evicted_and_wanted_again_at_once_is_whole(root: Path, store: WatchedStore) -> None:
    one, two = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, one.size)
    for _ in range(20):
        async with await cache.lease(one) as lease:
            assert is_intact(lease.path, one)
        async with await cache.lease(two) as lease:
            assert is_intact(lease.path, two)
    assert kept(root) == {two.digest}


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


class CacheMachine(RuleBasedStateMachine):
    """The cache on a real folder through any course of leases, drops, tampering and restarts."""

    SIZES = (400, 800, 1200, 2000)
    BUDGET = 3000

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.store = WatchedStore(self.folder / "store")
        self.keys = [self.store.publish(number, size) for number, size in enumerate(self.SIZES, start=1)]
        self.leases: list[tuple[VersionKey, Lease]] = []
        self.tampered = False
        self.open()

    def open(self) -> None:
        self.cache = DiskCache(self.folder / "cache", self.store, self.BUDGET)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def settled() -> Any:
            try:
                return await work
            finally:
                await settle()

        return self.runner.run(settled())

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=4), wrong=st.none() | st.integers(0, 3))
    def lease(self, numbers: list[int], wrong: int | None) -> None:
        self.store.wrong = {self.keys[wrong].weights_digest} if wrong is not None else set()

        async def together() -> list[Any]:
            return await asyncio.gather(
                *(self.cache.lease(self.keys[number]) for number in numbers), return_exceptions=True
            )

        for number, result in zip(numbers, self.do(together()), strict=True):
            if isinstance(result, DigestMismatch):
                assert number == wrong
            elif isinstance(result, BaseException):
                assert isinstance(result, DiskFull), result
            else:
                self.leases.append((self.keys[number], result))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))

        async def release() -> None:
            lease.release()

        self.do(release())

    @rule(number=st.integers(0, 3))
    def drop(self, number: int) -> None:
        self.do(self.cache.drop(self.keys[number]))

    @rule(tampered=st.none() | st.integers(0, 3), how=st.sampled_from(sorted(TAMPERINGS)))
    def restart(self, tampered: int | None, how: str) -> None:
        self.leases.clear()
        path = self.folder / "cache" / self.keys[tampered or 0].digest
        if tampered is not None and path.exists():
            TAMPERINGS[how](path)
            self.tampered = True
        self.open()

    @invariant()
    def leased_versions_are_whole(self) -> None:
        for key, lease in self.leases:
            assert is_intact(lease.path, key)

    @invariant()
    def the_disk_holds_what_the_cache_says_within_its_budget(self) -> None:
        root = self.folder / "cache"
        on_disk = sum(
            sum(file.lstat().st_size for file in (root / name).iterdir())
            for name in kept(root)
            if (root / name).is_dir()
        )
        assert on_disk == self.cache.used_bytes
        # Tampering may have made a file larger; the next fetch makes up for it.
        assert on_disk <= self.BUDGET or (self.tampered and not self.cache.misses)
        assert {key.digest for key, _ in self.leases} <= kept(root)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
            shutil.rmtree(self.folder)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


async def test_a_cache_says_what_its_disk_holds_by_the_disk_itself(root: Path, store: WatchedStore) -> None:
    key, other = store.publish(1), store.publish(2)
    cache = DiskCache(root, store, 10_000)
    assert not await cache.holds(key)
    await fill(cache, key)
    assert await cache.holds(key)
    assert not await cache.holds(other)
    await cache.drop(key)
    assert not await cache.holds(key)


async def test_half_a_removal_counts_as_held_and_is_finished_by_the_next(root: Path, store: WatchedStore) -> None:
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
