"""Pins: a slot and a place for good, in this life of the engine and the next."""

import asyncio
from pathlib import Path

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from adapters.stores.local import LocalStore
from app.engine.loading import AdapterLoader
from app.engine.pinning import Pins, Standing
from app.errors import AdapterLoadFailed, Conflict, EngineUnavailable
from tests.app.engine.conftest import PLACES, SLOTS, Host


@pytest.fixture
def pins(host: Host, loader: AdapterLoader) -> Pins:
    return Pins(host, loader, slots=SLOTS)


async def test_a_pinned_version_is_loaded_and_never_evicted(
    pins: Pins, loader: AdapterLoader, host: Host, version
) -> None:
    await pins.pin(version(1))
    for version_id in range(2, 9):
        await loader.load(version(version_id))
    assert host.pinned == {1}
    assert host.held == {1, 7, 8}


async def test_others_share_the_slots_that_are_left(pins: Pins, loader: AdapterLoader, version) -> None:
    await pins.pin(version(1))
    running = await loader.lease("running", version(2))
    waiting = asyncio.create_task(loader.lease("waiting", version(3)))
    while not loader.waiting:
        await asyncio.sleep(0)
    (await loader.lease("pinned", version(1))).release()
    assert not waiting.done()
    running.release()
    (await waiting).release()


async def test_one_slot_is_left(pins: Pins, loader: AdapterLoader, version) -> None:
    await pins.pin(version(1))
    with pytest.raises(Conflict, match="found 2 of 2 slots, allowed 1"):
        await pins.pin(version(2))
    await pins.pin(version(1))
    (await loader.lease("other", version(2))).release()


async def test_an_engine_with_one_slot_pins_nothing(host: Host, loader: AdapterLoader, version) -> None:
    with pytest.raises(Conflict, match="found 1 of 1 slots, allowed 0"):
        await Pins(host, loader, slots=1).pin(version(1))
    assert host.adds == []


async def test_unpinned_it_is_like_all_others(pins: Pins, loader: AdapterLoader, host: Host, version) -> None:
    await pins.pin(version(1))
    await pins.unpin(1)
    await pins.unpin(1)
    assert (host.pinned, host.held) == (set(), {1}), "it stays until its place is needed"
    leases = [await loader.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    for lease in leases:
        lease.release()
    await loader.load(version(4))
    assert host.held == {2, 3, 4}


async def test_a_version_that_is_deleted_leaves_when_it_is_unpinned(
    pins: Pins, loader: AdapterLoader, host: Host, version
) -> None:
    await pins.pin(version(1))
    await loader.unload(1)
    assert host.held == {1}
    await pins.unpin(1)
    while host.held:
        await asyncio.sleep(0)
    assert not loader.holds(1)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_pin_that_fails_holds_nothing_back(
    pins: Pins, loader: AdapterLoader, host: Host, version, stored: bool
) -> None:
    host.broken = {1}
    for _ in range(PLACES + SLOTS):
        with pytest.raises(AdapterLoadFailed if stored else BlobNotFound):
            await pins.pin(version(1, stored=stored))
    assert loader.resident == 0
    await pins.pin(version(2))
    (await loader.lease("other", version(3))).release()


async def test_unpinning_while_it_loads_leaves_no_pin(pins: Pins, loader: AdapterLoader, host: Host, version) -> None:
    host.may_load.clear()
    pinning = asyncio.create_task(pins.pin(version(1)))
    while not host.adds:
        await asyncio.sleep(0)
    await pins.unpin(1)
    host.may_load.set()
    await pinning
    assert host.pinned == set()
    leases = [await loader.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    assert len(leases) == SLOTS


async def test_pinning_again_at_once_keeps_the_second_pin(
    pins: Pins, loader: AdapterLoader, host: Host, version
) -> None:
    host.may_load.clear()
    first = asyncio.create_task(pins.pin(version(1)))
    while not host.adds:
        await asyncio.sleep(0)
    await pins.unpin(1)
    second = asyncio.create_task(pins.pin(version(1)))
    await asyncio.sleep(0)
    host.may_load.set()
    await asyncio.gather(first, second)
    assert host.pinned == {1}
    for version_id in range(2, 7):
        await loader.load(version(version_id))
    assert 1 in host.held


async def test_a_cancelled_pin_gives_its_slot_back(pins: Pins, loader: AdapterLoader, host: Host, version) -> None:
    running = [await loader.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    pinning = asyncio.create_task(pins.pin(version(1)))
    while not loader.waiting:
        await asyncio.sleep(0)
    pinning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pinning
    assert loader.waiting == 0
    for lease in running:
        lease.release()
    await pins.pin(version(4))
    assert host.pinned == {4}


@pytest.fixture
def next_life(store: LocalStore, tmp_path: Path) -> tuple[Host, AdapterLoader, Pins]:
    host = Host()
    cache = DiskCache(tmp_path / "next cache", store, 2**20)
    loader = AdapterLoader(host, cache, slots=SLOTS, places=PLACES, notify=lambda _event: None)
    return host, loader, Pins(host, loader, slots=SLOTS)


async def test_the_next_life_gets_pins_and_preloads(next_life: tuple[Host, AdapterLoader, Pins], version) -> None:
    host, loader, pins = next_life
    standing = Standing()
    standing.pins[1] = version(1)
    standing.preloads = {2: version(2), 3: version(3)}
    standing.forget(3)
    await standing.establish(loader, pins)
    assert (host.pinned, host.held) == ({1}, {1, 2})
    assert (set(standing.pins), set(standing.preloads)) == ({1}, {2})


async def test_what_cannot_be_loaded_is_said_and_given_up(
    next_life: tuple[Host, AdapterLoader, Pins], version, caplog: pytest.LogCaptureFixture
) -> None:
    host, loader, pins = next_life
    host.broken = {1}
    standing = Standing()
    standing.pins = {1: version(1), 2: version(2)}
    standing.preloads = {3: version(3, stored=False), 4: version(4)}
    await standing.establish(loader, pins)
    assert (host.pinned, host.held) == ({2}, {2, 4})
    assert (set(standing.pins), set(standing.preloads)) == ({2}, {4})
    assert version(1).lora_name in caplog.text
    assert version(3).lora_name in caplog.text


async def test_a_life_that_ends_too_soon_leaves_all_to_the_next(
    next_life: tuple[Host, AdapterLoader, Pins], version
) -> None:
    host, loader, pins = next_life
    host.dead = True
    standing = Standing()
    standing.pins[1] = version(1)
    standing.preloads[2] = version(2)
    await standing.establish(loader, pins)
    assert (set(standing.pins), set(standing.preloads)) == ({1}, {2})
    with pytest.raises(EngineUnavailable):
        await pins.pin(version(1))
