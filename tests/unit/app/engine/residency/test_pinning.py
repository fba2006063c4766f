"""Pins: a version keeps its slot and its host memory, also after an engine restart."""

import asyncio

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from app.domain.errors import AdapterLoadFailed, Conflict, EngineUnavailable
from app.engine.residency.adapter_loader import AdapterLoader
from app.engine.residency.pinning import DesiredAdapters, Pins
from tests.support.workers import PLACES, SLOTS, Desk, Versions, Workers


@pytest.fixture
def pins(loader: AdapterLoader) -> Pins:
    return Pins(loader, slots=SLOTS)


async def test_a_pinned_version_is_loaded_and_never_evicted(
    pins: Pins, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    await pins.pin(version(1))
    for version_id in range(2, 9):
        await loader.load(version(version_id))
    assert pins.versions == {1}
    assert workers.held == {1, 8}


async def test_others_share_the_slots_that_are_left(pins: Pins, desk: Desk, version: Versions) -> None:
    await pins.pin(version(1))
    running = await desk.lease("running", version(2))
    waiting = asyncio.create_task(desk.lease("waiting", version(3)))
    while not desk.queue.waiting:
        await asyncio.sleep(0)
    (await desk.lease("pinned", version(1))).release()
    assert not waiting.done()
    running.release()
    (await waiting).release()


async def test_one_slot_is_left(pins: Pins, desk: Desk, version: Versions) -> None:
    await pins.pin(version(1))
    with pytest.raises(Conflict, match="2 of 2 slots would be pinned; the limit is 1"):
        await pins.pin(version(2))
    await pins.pin(version(1))
    (await desk.lease("other", version(2))).release()


async def test_an_engine_with_one_slot_pins_nothing(workers: Workers, loader: AdapterLoader, version: Versions) -> None:
    with pytest.raises(Conflict, match="1 of 1 slots would be pinned; the limit is 0"):
        await Pins(loader, slots=1).pin(version(1))
    assert workers.stagings == []


async def test_unpinned_it_is_like_all_others(
    pins: Pins, desk: Desk, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    await pins.pin(version(1))
    pins.unpin(1)
    pins.unpin(1)
    assert (pins.versions, workers.held) == (set(), {1}), "it stays until its place is needed"
    leases = [await desk.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    for lease in leases:
        lease.release()
    await loader.load(version(4))
    assert workers.held == {3, 4}


async def test_a_version_that_is_deleted_leaves_when_it_is_unpinned(
    pins: Pins, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    await pins.pin(version(1))
    await loader.unload(1)
    assert workers.held == {1}
    pins.unpin(1)
    async with asyncio.timeout(10):
        while workers.held or loader.holds(1):
            await asyncio.sleep(0)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_pin_that_fails_holds_nothing_back(
    pins: Pins, desk: Desk, loader: AdapterLoader, workers: Workers, version: Versions, stored: bool
) -> None:
    workers.unreadable = {1}
    for _ in range(PLACES + SLOTS):
        with pytest.raises(AdapterLoadFailed if stored else BlobNotFound):
            await pins.pin(version(1, stored=stored))
    assert len(loader.slots) == 0
    await pins.pin(version(2))
    (await desk.lease("other", version(3))).release()


async def test_unpinning_while_it_loads_leaves_no_pin(
    pins: Pins, desk: Desk, workers: Workers, version: Versions
) -> None:
    workers.may_stage.clear()
    pinning = asyncio.create_task(pins.pin(version(1)))
    while not workers.stagings:
        await asyncio.sleep(0)
    pins.unpin(1)
    workers.may_stage.set()
    await pinning
    assert pins.versions == set()
    leases = [await desk.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    assert len(leases) == SLOTS


async def test_pinning_again_at_once_keeps_the_second_pin(
    pins: Pins, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    workers.may_stage.clear()
    first = asyncio.create_task(pins.pin(version(1)))
    while not workers.stagings:
        await asyncio.sleep(0)
    pins.unpin(1)
    second = asyncio.create_task(pins.pin(version(1)))
    await asyncio.sleep(0)
    workers.may_stage.set()
    await asyncio.gather(first, second)
    assert pins.versions == {1}
    for version_id in range(2, 7):
        await loader.load(version(version_id))
    assert 1 in workers.held


async def test_a_cancelled_pin_gives_its_slot_back(pins: Pins, desk: Desk, workers: Workers, version: Versions) -> None:
    running = [await desk.lease(f"r{version_id}", version(version_id)) for version_id in (2, 3)]
    pinning = asyncio.create_task(pins.pin(version(1)))
    while not desk.queue.waiting:
        await asyncio.sleep(0)
    pinning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pinning
    assert desk.queue.waiting == 0
    for lease in running:
        lease.release()
    await pins.pin(version(4))
    assert pins.versions == {4}


@pytest.fixture
def next_life(cache: DiskCache) -> tuple[Workers, AdapterLoader, Pins]:
    workers = Workers()
    loader = Desk(workers, cache, []).loader
    return workers, loader, Pins(loader, slots=SLOTS)


async def test_the_next_life_gets_pins_and_preloads(
    next_life: tuple[Workers, AdapterLoader, Pins], version: Versions
) -> None:
    workers, loader, pins = next_life
    desired = DesiredAdapters()
    desired.pins[1] = version(1)
    desired.preloads = {2: version(2), 3: version(3)}
    desired.forget(3)
    await desired.establish(loader, pins)
    assert (pins.versions, workers.held) == ({1}, {1, 2})
    assert (set(desired.pins), set(desired.preloads)) == ({1}, {2})


async def test_what_cannot_be_loaded_is_said_and_given_up(
    next_life: tuple[Workers, AdapterLoader, Pins], version: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    workers, loader, pins = next_life
    workers.unreadable = {1}
    desired = DesiredAdapters()
    desired.pins = {1: version(1), 2: version(2)}
    desired.preloads = {3: version(3, stored=False), 4: version(4)}
    await desired.establish(loader, pins)
    assert (pins.versions, workers.held) == ({2}, {2, 4})
    assert (set(desired.pins), set(desired.preloads)) == ({2}, {4})
    assert version(1).lora_name in caplog.text
    assert version(3).lora_name in caplog.text


async def test_a_life_that_ends_too_soon_leaves_all_to_the_next(
    next_life: tuple[Workers, AdapterLoader, Pins], version: Versions
) -> None:
    workers, loader, pins = next_life
    workers.dead = True
    desired = DesiredAdapters()
    desired.pins[1] = version(1)
    desired.preloads[2] = version(2)
    await desired.establish(loader, pins)
    assert (set(desired.pins), set(desired.preloads)) == ({1}, {2})
    with pytest.raises(EngineUnavailable):
        await pins.pin(version(1))
