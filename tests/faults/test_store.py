"""Store down, slow, throttling or corrupting data, and a full disk: only requests that need them fail."""

import asyncio
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.faults.load import OK, Load
from tests.support.faults.report import Measured
from tests.support.faults.site import BUCKET, Site, variants
from tests.support.s3server import s3_client

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
THROTTLED = b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\ncontent-length: %d\r\n\r\n%s"
CORRUPT = "adapter_bytes_corrupt"


@pytest.fixture
def directory(site: Site, tmp_path: Path, chance: random.Random) -> Path:
    """Create an unpublished adapter."""
    source = next(iter(site.adapters.values()))
    directory = next(variants(tmp_path, source, 1, scale=chance.uniform(1.5, 2.0)))
    return directory.rename(tmp_path / f"n{chance.randrange(10**9)}")


@contextmanager
def down(site: Site) -> Iterator[None]:
    site.store.refuses = True
    site.store.cut()
    try:
        yield
    finally:
        site.store.heal()


@contextmanager
def slow(site: Site, delay_s: float) -> Iterator[None]:
    site.store.delay_s = delay_s
    try:
        yield
    finally:
        site.store.heal()


@contextmanager
def throttling(site: Site) -> Iterator[None]:
    site.store.answer = THROTTLED % (len(SLOW_DOWN), SLOW_DOWN)
    try:
        yield
    finally:
        site.store.heal()


@contextmanager
def full_disk(site: Site) -> Iterator[None]:
    """Forbid the server's process to extend files.

    The process sees EFBIG, where a full disk gives ENOSPC.
    """
    process = psutil.Process(site.host.server.process.pid)
    soft, hard = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("fault", "trouble", "code"),
    [
        ("store down", down, "store_unavailable"),
        ("store throttling", throttling, "store_unavailable"),
        ("disk full", full_disk, "disk_full"),
    ],
)
async def test_only_what_has_to_be_fetched_or_kept_is_refused(
    site: Site,
    chance: random.Random,
    seed: int,
    directory: Path,
    fault: str,
    trouble: Callable[[Site], AbstractContextManager[None]],
    code: str,
) -> None:
    async with Load(site.host.url, site.units, clients=4) as load, Load(site.host.url, site.cold, clients=2) as cold:
        await asyncio.sleep(chance.uniform(0, 1))
        began = time.monotonic()
        with trouble(site):
            await cold.until_seen(code, began)
            assert await asyncio.to_thread(site.publish, directory) == code
            assert await asyncio.to_thread(site.make_key) == OK
        over = time.monotonic()
        recovery_s = max(await cold.settled(over), await load.settled(over))
        assert await asyncio.to_thread(site.publish, directory) == OK
        await asyncio.to_thread(site.wait_ready)
        results, results_of_cold = load.seen(began), cold.seen(began)
    assert set(results) == {OK}, results
    assert set(results_of_cold) == {OK, code}, results_of_cold
    site.check_promises(load.promises + cold.promises)
    Measured(fault, results + results_of_cold, recovery_s).write(seed)


async def test_slow(site: Site, chance: random.Random, seed: int, directory: Path) -> None:
    async with Load(site.host.url, site.units, clients=4) as load, Load(site.host.url, site.cold, clients=2) as cold:
        began = time.monotonic()
        with slow(site, chance.uniform(0.1, 0.3)):
            await cold.settled(began)
            assert await asyncio.to_thread(site.publish, directory) == OK
        over = time.monotonic()
        recovery_s = max(await cold.settled(over), await load.settled(over))
        results = load.seen(began) + cold.seen(began)
    assert set(results) == {OK}, results
    site.check_promises(load.promises + cold.promises)
    Measured("store slow", results, recovery_s).write(seed)


async def test_wrong_bytes(site: Site, chance: random.Random, seed: int) -> None:
    """Corrupt all cold adapters but one.

    The node may still have some of them in its cache for a while.
    """
    spared, *victims = chance.sample(site.cold, len(site.cold))
    async with Load(site.host.url, site.cold, clients=3) as load:
        began = time.monotonic()
        with ExitStack() as corrupt:
            for victim in victims:
                corrupt.enter_context(corrupted(site, victim.model, chance))
            await load.until_seen(CORRUPT, began)
        recovery_s = await load.settled(time.monotonic())
        results = load.seen(began)
    assert set(results) == {OK, CORRUPT}, results
    assert spared.model not in {outcome.model for outcome in load.outcomes if outcome.result != OK}
    site.check_promises(load.promises)
    Measured("store returning wrong bytes", results, recovery_s).write(seed)


@contextmanager
def corrupted(site: Site, adapter: str, chance: random.Random) -> Iterator[None]:
    """Flip one bit of an adapter's weights in the bucket."""
    [[digest]] = site.sql(
        "SELECT weights_digest FROM versions JOIN adapters ON adapters.id = adapter_id WHERE adapters.slug = %s",
        adapter,
    )
    client, key = s3_client(site.endpoint), f"p/sha256/{digest}"
    right = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    wrong = bytearray(right)
    wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    client.put_object(Bucket=BUCKET, Key=key, Body=bytes(wrong))
    try:
        yield
    finally:
        client.put_object(Bucket=BUCKET, Key=key, Body=right)
