import os
import shutil
import time
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from tests.support.watched_store import TAMPERINGS, WEIGHTS, WatchedStore, fill, is_intact, kept


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


@pytest.mark.parametrize("how", TAMPERINGS)
async def test_a_tampered_file_is_fetched_again(root: Path, store: WatchedStore, how: str) -> None:
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
