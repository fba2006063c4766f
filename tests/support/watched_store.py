"""Store that tests can block and corrupt, and helpers to inspect the cache's disk."""

import asyncio
import hashlib
import os
import tempfile
import threading
from collections.abc import Set
from pathlib import Path
from typing import Any

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class WatchedStore:
    """Real store whose fetches tests can count, block and corrupt.

    Attributes:
        fetched: requested digests, in order.
        gate: event; fetches wait until it is set.
        wrong: digests for which wrong bytes are delivered.
        active, most_active: number of fetches in progress, now and at most.
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
        """Store a version with weights of the given size in bytes."""
        blobs = [f'{{"r": {number}}}'.encode(), number.to_bytes(4, "big") * (size // 4)]
        digests = [hashlib.sha256(blob).hexdigest() for blob in blobs]
        for blob, digest in zip(blobs, digests, strict=True):
            with tempfile.NamedTemporaryFile() as source:
                source.write(blob)
                source.flush()
                self.real.put(digest, Path(source.name))
        config, weights = digests
        return VersionKey(version_id or number, config, weights, *map(len, blobs))


class Clock:
    """Clock in seconds that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle(tasks_of_others: Set[asyncio.Task[Any]] = frozenset()) -> None:
    """Wait for the cache's background tasks."""
    while tasks := asyncio.all_tasks() - tasks_of_others - {asyncio.current_task()}:
        await asyncio.wait(tasks)


def kept(root: Path) -> set[str]:
    """Return the digests on disk, and check that no partial files are left."""
    assert list((root / "tmp").iterdir()) == []
    return {path.name for path in root.iterdir()} - {"tmp"}


def is_intact(path: Path, key: VersionKey) -> bool:
    digests = {file.name: file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    return digests == {CONFIG: key.config_digest, WEIGHTS: key.weights_digest}


async def fill(cache: DiskCache, *keys: VersionKey) -> None:
    for key in keys:
        (await cache.lease(key)).release()


async def until(condition: Any, timeout_s: float = 60) -> None:
    """Poll until other tasks and threads have made the condition true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


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
