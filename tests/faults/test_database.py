"""Database restarted, slow, silent, read-only or full, under load."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.support.faults.load import OK, Load
from tests.support.faults.report import Measured
from tests.support.faults.site import Site

GONE = "registry_unavailable"
#: Trigger function on every table of the registry: it does nothing, or raises PostgreSQL's error for a full disk.
FULL_DISK = "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NULL; END $$"
NO_SPACE = "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';"
READ_ONLY = "ALTER DATABASE tenora SET default_transaction_read_only = {}"
DROP_CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'tenora'"


@contextmanager
def silent(site: Site) -> Iterator[None]:
    """Simulate packet loss: no error ever comes, so only a deadline detects it."""
    site.database.silent = True
    try:
        yield
    finally:
        site.database.silent = False


@contextmanager
def read_only(site: Site) -> Iterator[None]:
    """Simulate a failover that leaves this server at the old primary."""
    site.sql(READ_ONLY.format("on"), database="postgres")
    site.sql(DROP_CONNECTIONS, database="postgres")
    try:
        yield
    finally:
        # The connections stay open, so the server must detect by itself that it needs new ones.
        site.sql(READ_ONLY.format("off"), database="postgres")


@contextmanager
def full(site: Site) -> Iterator[None]:
    """Raise PostgreSQL's error for a full disk at every change.

    A real full disk would need root.
    """
    site.sql(FULL_DISK.format(""))
    # One table at a time: a lock on several would deadlock with the server's transactions.
    tables = [name for (name,) in site.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    for name in tables:
        site.sql(f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {name} EXECUTE FUNCTION full_disk()")
    site.sql(FULL_DISK.format(NO_SPACE))
    try:
        yield
    finally:
        site.sql(FULL_DISK.format(""))
        for name in tables:
            site.sql(f"DROP TRIGGER full_disk ON {name}")


async def made_again(site: Site) -> float:
    """Retry until a key can be created; return the seconds that it took."""
    began = time.monotonic()
    while await asyncio.to_thread(site.make_key) != OK:
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def end_well(site: Site, load: Load, began: float, over: float) -> tuple[Counter[str], float]:
    """Wait for full recovery.

    Returns the results since the fault began and the seconds since it ended.
    """
    made_s = await made_again(site)
    recovery_s = max(await load.settled(over), made_s)
    await asyncio.to_thread(site.wait_ready)
    return load.seen(began), recovery_s


async def test_restarted(site: Site, chance: random.Random, seed: int) -> None:
    async with Load(site.host.url, site.units) as load:
        await asyncio.sleep(chance.uniform(0, 1))
        began = time.monotonic()
        await asyncio.to_thread(site.postgres.stop, chance.choice(["immediate", "fast"]))
        await asyncio.sleep(chance.uniform(0.5, 3))
        assert await asyncio.to_thread(site.make_key) == GONE
        await asyncio.to_thread(site.postgres.start)
        results, recovery_s = await end_well(site, load, began, time.monotonic())
    assert set(results) <= {OK, GONE}, results
    assert results[GONE] > 0
    site.check_promises(load.promises)
    Measured("database restarted", results, recovery_s).write(seed)


async def test_slow(site: Site, chance: random.Random, seed: int) -> None:
    async with Load(site.host.url, site.units) as load:
        began = time.monotonic()
        site.database.delay_s = chance.uniform(0.05, 0.2)
        try:
            await load.settled(began)
            assert await asyncio.to_thread(site.make_key) == OK
        finally:
            site.database.delay_s = 0
        results, recovery_s = await end_well(site, load, began, time.monotonic())
    assert set(results) == {OK}, results
    site.check_promises(load.promises)
    Measured("database slow", results, recovery_s).write(seed)


async def test_silent(site: Site, chance: random.Random, seed: int) -> None:
    async with Load(site.host.url, site.units) as load:
        await asyncio.sleep(chance.uniform(0, 1))
        began = time.monotonic()
        with silent(site):
            await load.until_seen(GONE, began)
        results, recovery_s = await end_well(site, load, began, time.monotonic())
    assert set(results) <= {OK, GONE}, results
    site.check_promises(load.promises)
    Measured("database silent", results, recovery_s).write(seed)


@pytest.mark.parametrize(("fault", "trouble"), [("database read-only", read_only), ("database full", full)])
async def test_what_needs_no_change_goes_on(
    site: Site, chance: random.Random, seed: int, fault: str, trouble: Callable[[Site], AbstractContextManager[None]]
) -> None:
    async with Load(site.host.url, site.units[:1]) as load, Load(site.host.url, site.units[1:], clients=2) as limited:
        await asyncio.sleep(chance.uniform(0, 1))
        began = time.monotonic()
        with trouble(site):
            await limited.until_seen(GONE, began)
            assert await asyncio.to_thread(site.make_key) == GONE
            await load.settled(time.monotonic())
        over = time.monotonic()
        results, recovery_s = await end_well(site, load, began, over)
        recovery_s = max(recovery_s, await limited.settled(over))
        results_of_limited = limited.seen(began)
    # GONE: a look-up was in flight on a connection that was cut.
    assert set(results) <= {OK, GONE}, results
    assert set(results_of_limited) <= {OK, GONE}, results_of_limited
    site.check_promises(load.promises + limited.promises)
    Measured(fault, results + results_of_limited, recovery_s).write(seed)
