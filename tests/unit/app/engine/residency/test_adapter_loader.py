"""Adapter loader: leases, the order of worker calls, and the state that remains afterwards."""

import asyncio
import threading
from dataclasses import replace

import pytest

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from adapters.identity import VersionKey
from app.domain.errors import AdapterLoadFailed, Busy, EngineUnavailable
from app.engine.port import EngineEvent
from app.engine.residency import adapter_loader as loading
from app.engine.residency.adapter_loader import AdapterLoader
from app.engine.residency.transfer import Transfers
from tests.support.workers import SLOTS, Desk, Versions, Workers


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def test_many_first_requests_load_once(desk: Desk, workers: Workers, version: Versions) -> None:
    leases = await asyncio.gather(*[desk.lease(f"r{n}", version(1)) for n in range(20)])
    assert (workers.stagings, workers.places) == ([1], [1])
    for lease in leases:
        lease.release()
        lease.release()
    assert (workers.held, workers.staged) == ({1}, {1}), "an adapter stays until its place is needed"


async def test_the_loader_knows_the_digests_of_its_versions(desk: Desk, version: Versions) -> None:
    (await desk.lease("r1", version(1))).release()
    assert (desk.loader.digest(1), desk.loader.digest(2)) == (version(1).digest, "")


async def test_waiting_requests_count_as_queued_tokens(desk: Desk, workers: Workers, version: Versions) -> None:
    assert (desk.queue.queued_tokens, desk.queue.tokens_per_s) == (0, None)
    workers.may_stage.clear()
    waiting = asyncio.create_task(desk.lease("r1", version(1)))
    await until(lambda: workers.stagings)
    assert desk.queue.queued_tokens > 0
    workers.may_stage.set()
    (await waiting).release()
    assert desk.queue.queued_tokens == 0


async def test_whoever_came_first_may_go_away(desk: Desk, workers: Workers, version: Versions) -> None:
    workers.may_stage.clear()
    first = asyncio.create_task(desk.lease("first", version(1)))
    second = asyncio.create_task(desk.lease("second", version(1)))
    await until(lambda: workers.stagings)
    first.cancel()
    workers.may_stage.set()
    (await second).release()
    assert workers.stagings == [1]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_warm_one_never_waits_for_a_cold_one(desk: Desk, workers: Workers, version: Versions) -> None:
    (await desk.lease("warm", version(1))).release()
    workers.may_stage.clear()
    cold = [asyncio.create_task(desk.lease(f"cold {number}", version(number))) for number in (2, 3, 4)]
    await until(lambda: len(workers.stagings) >= 3)
    (await desk.lease("warm again", version(1))).release()
    assert not any(task.done() for task in cold)
    workers.may_stage.set()
    for task in asyncio.as_completed(cold):
        (await task).release()


async def test_a_request_that_goes_away_leaves_no_lease_behind(
    desk: Desk, workers: Workers, cache: DiskCache, version: Versions
) -> None:
    workers.may_stage.clear()
    gone = [asyncio.create_task(desk.lease(f"r{number}", version(number))) for number in range(1, 9)]
    await until(lambda: workers.stagings)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    workers.may_stage.set()
    for number in range(11, 15):
        (await desk.lease(f"r{number}", version(number))).release()
    host = desk.loader.host
    assert (host.residency.used, desk.queue.waiting) == (host.residency.capacity, 0)
    assert not any(host.residency.leases(number) for number in range(20))
    for number in range(20):
        await cache.drop(version(number))
    assert cache.used_bytes == 0, "files are leased while they are read, and no longer"


@pytest.mark.parametrize("step", ["unreadable", "uncopyable"])
async def test_a_failed_load_fails_all_who_wait_and_frees_its_place(
    desk: Desk, workers: Workers, version: Versions, step: str
) -> None:
    getattr(workers, step).add(1)
    results = await asyncio.gather(*[desk.lease(f"r{n}", version(1)) for n in range(3)], return_exceptions=True)
    assert all(isinstance(result, AdapterLoadFailed) for result in results)
    assert 1 not in workers.held | workers.named
    for version_id in range(2, 8):
        (await desk.lease(f"other {version_id}", version(version_id))).release()
    assert not desk.loader.host.residency.leases(1)


async def test_a_leased_one_is_never_evicted(desk: Desk, workers: Workers, version: Versions) -> None:
    held = await desk.lease("held", version(1))
    for version_id in (2, 3, 4, 5):
        (await desk.lease(f"r{version_id}", version(version_id))).release()
        assert 1 in workers.held
    held.release()


async def test_what_host_memory_dropped_is_staged_again(desk: Desk, workers: Workers, version: Versions) -> None:
    for version_id in (1, 2, 3, 4, 5, 1):
        (await desk.lease(f"r{version_id} {len(workers.places)}", version(version_id))).release()
    assert workers.stagings.count(1) == 2
    assert len(workers.staged) <= 3


async def test_no_more_distinct_adapters_run_than_slots(desk: Desk, workers: Workers, version: Versions) -> None:
    running = [await desk.lease(f"r{version_id}", version(version_id)) for version_id in range(1, SLOTS + 1)]
    waiting = asyncio.create_task(desk.lease("third", version(3)))
    await until(lambda: 3 in workers.staged)
    assert 3 not in workers.places
    running[0].release()
    (await waiting).release()


async def test_an_abandoned_copy_keeps_its_slot_until_it_ends(desk: Desk, workers: Workers, version: Versions) -> None:
    workers.pieces = 40
    running = await desk.lease("running", version(9))
    leaving = asyncio.create_task(desk.lease("leaving", version(1)))
    await until(lambda: workers.copying)
    leaving.cancel()
    others = [asyncio.create_task(desk.lease(f"r{number}", version(number))) for number in (2, 3)]
    for other in asyncio.as_completed(others):
        (await other).release()
    running.release()
    assert workers.places[:2] == [9, 1]


async def test_a_deadline_during_a_copy_ends_only_the_wait(desk: Desk, workers: Workers, version: Versions) -> None:
    workers.pieces = 10**9
    patient = asyncio.create_task(desk.lease("patient", version(1)))
    await until(lambda: 1 in workers.copying)
    with pytest.raises(Busy, match=r"x-request-timeout.*its adapter") as caught:
        await desk.lease("hurried", version(1), deadline_s=0.05)
    assert caught.value.retry_after
    workers.pieces = workers.copying[1] + 5
    (await patient).release()
    assert workers.places == [1]
    assert not desk.loader.slots.leases(1)
    assert not desk.queue.snapshot().versions


async def test_missing_bytes_hold_nothing_back(desk: Desk, workers: Workers, version: Versions) -> None:
    with pytest.raises(BlobNotFound):
        await desk.lease("missing", version(9, stored=False))
    assert (len(desk.loader.slots), desk.queue.waiting, workers.stagings) == (0, 0, [])
    assert not desk.loader.holds(9)


async def test_a_deleted_version_leaves_with_its_last_request(
    desk: Desk, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    lease = await desk.lease("running", version(1))
    await loader.unload(1)
    assert workers.held == {1}
    lease.release()
    await until(lambda: not workers.held)
    await until(lambda: not loader.holds(1))
    assert not workers.staged


async def test_closing_refuses_those_who_wait_and_gives_the_files_back(
    desk: Desk, workers: Workers, cache: DiskCache, version: Versions
) -> None:
    await desk.lease("running", version(1))
    workers.may_stage.clear()
    waiting = asyncio.create_task(desk.lease("waiting", version(2)))
    await until(lambda: 2 in workers.stagings)
    workers.dead = True
    await desk.loader.close()
    with pytest.raises(EngineUnavailable):
        await waiting
    with pytest.raises(EngineUnavailable):
        await desk.lease("late", version(3))
    for version_id in (1, 2, 3):
        await cache.drop(version(version_id))
    assert cache.used_bytes == 0


async def test_events_say_what_came_and_went(
    desk: Desk, loader: AdapterLoader, workers: Workers, events: list[EngineEvent], version: Versions
) -> None:
    for version_id in (1, 2, 3):
        await loader.load(version(version_id))
    await loader.unload(2)
    workers.uncopyable = {9}
    with pytest.raises(AdapterLoadFailed):
        await loader.load(version(9))
    with pytest.raises(BlobNotFound):
        await loader.load(version(10, stored=False))
    assert [(event.kind, event.version_id) for event in events] == [
        ("load", 1),
        ("load", 2),
        ("evict", 1),
        ("load", 3),
        ("unload", 2),
        ("load_failed", 9),
    ]
    assert all((event.seconds is not None) == event.kind.startswith("load") for event in events)
    assert all((event.phases is not None) == (event.kind == "load") for event in events)


async def test_a_cold_request_knows_what_it_waited_for(desk: Desk, version: Versions) -> None:
    cold = await desk.lease("cold", version(1))
    warm = await desk.lease("warm", version(1))
    assert cold.phases is not None
    assert all(
        seconds >= 0 for seconds in (cold.phases.fetch_s, cold.phases.stage_s, cold.phases.wait_s, cold.phases.copy_s)
    )
    assert cold.phases.fetch_s > 0
    assert cold.phases.stage_s > 0
    assert warm.phases is None


async def test_prefetching_uses_free_room_only(desk: Desk, workers: Workers, version: Versions) -> None:
    for version_id in range(1, 6):
        desk.loader.host.prefetch(version(version_id))
    await until(lambda: len(workers.staged) == 3)
    assert not workers.held
    there = min(workers.staged)
    await desk.lease("r", version(there))
    assert workers.stagings.count(there) == 1
    assert desk.loader.host.residency.evictions == 0


async def test_what_is_being_loaded_or_taken_out_is_held(
    desk: Desk, loader: AdapterLoader, workers: Workers, version: Versions
) -> None:
    workers.may_stage.clear()
    loading = asyncio.create_task(loader.load(version(1)))
    await until(lambda: workers.stagings)
    assert loader.holds(1)
    workers.may_stage.set()
    await loading
    lease = await desk.lease("running", version(1))
    await loader.unload(1)
    assert loader.holds(1), "a request runs on it"
    lease.release()
    await until(lambda: not workers.held)
    await until(lambda: not loader.holds(1))


async def test_whoever_gives_up_the_queue_during_a_copy_waits_no_more(
    desk: Desk, workers: Workers, version: Versions
) -> None:
    workers.pieces = 40
    running = [await desk.lease("running", version(8)), await desk.lease("too", version(9))]
    waiting = [asyncio.create_task(desk.lease(f"r{number}", version(1))) for number in range(3)]
    await until(lambda: 1 in workers.staged)
    running.pop().release()
    await until(lambda: 1 in workers.copying)
    late = asyncio.create_task(desk.lease("late", version(2)))
    for task in [waiting[0], late]:
        task.cancel()
    await asyncio.gather(waiting[0], late, return_exceptions=True)
    assert desk.queue.waiting == 0
    assert not list(desk.queue.versions_to_stage())
    for lease in [*await asyncio.gather(*waiting[1:]), *running]:
        lease.release()
    assert not desk.loader.slots.leases(1)


async def test_a_copy_outlives_its_request_and_the_host_copy(desk: Desk, workers: Workers, version: Versions) -> None:
    async with desk.loader._changes:
        first = asyncio.create_task(desk.lease("first", version(1)))
        await until(lambda: 1 in desk.loader._loads)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        others = [asyncio.create_task(desk.lease(f"other {number}", version(number))) for number in (2, 3, 4)]
        await until(lambda: not desk.loader.host.is_staged(1))
    await until(lambda: 1 not in desk.loader._loads)
    assert workers.places[0] == 1
    for task in asyncio.as_completed(others):
        (await task).release()


async def test_a_copy_for_a_slot_alone_is_made_once_at_a_time(
    desk: Desk, workers: Workers, cache: DiskCache, version: Versions
) -> None:
    host = desk.loader.host
    async with desk.loader._changes:
        first = asyncio.create_task(desk.lease("first", version(1)))
        await until(lambda: 1 in desk.loader._loads)
        first.cancel()
        others = [asyncio.create_task(desk.lease(f"other {number}", version(number))) for number in (2, 3, 4)]
        await until(lambda: host._staged == {2, 3, 4})
        for other in others:
            other.cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        await desk.loader.unload(4)
        workers.may_stage.clear()
    await until(lambda: workers.stagings.count(1) == 2)
    host.prefetch(version(1))
    await until(lambda: 1 in host._files)
    workers.may_stage.set()
    await until(lambda: 1 not in desk.loader._loads)
    assert workers.places[0] == 1
    await until(lambda: workers.staged == {1, 2, 3})


async def test_a_repeated_copy_survives_the_earlier_eviction(desk: Desk, workers: Workers, version: Versions) -> None:
    host = desk.loader.host
    for number in (1, 2, 3):
        host.prefetch(version(number))
    await until(lambda: host._staged == {1, 2, 3})
    host.hold(version(4), "one")
    await until(lambda: 4 in host._files)
    assert host._stage(4)
    (evicted,) = {1, 2, 3} - host._staged
    async with asyncio.timeout(10), host.copy(version(evicted), "one"):
        assert evicted in workers.staged
    await until(lambda: 4 in workers.staged)
    assert evicted not in workers.staged


@pytest.mark.parametrize("at", ["fetch", "stage"])
async def test_one_deleted_on_its_way_to_nobody_leaves_nothing(
    at: str, desk: Desk, workers: Workers, cache: DiskCache, version: Versions
) -> None:
    host = desk.loader.host
    workers.may_stage.clear()
    host.prefetch(version(1))
    if at == "stage":
        await until(lambda: workers.stagings)
    await desk.loader.unload(1)
    workers.may_stage.set()
    await until(lambda: not desk.loader.holds(1) and not workers.staged)
    assert not host.residency.used


async def test_one_deleted_while_it_waits_for_room_leaves_its_files(
    desk: Desk, workers: Workers, cache: DiskCache, version: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, lease, fetched = desk.loader.host, cache.lease, asyncio.Event()

    async def late(key, **share):
        if key.version_id == 5:
            await fetched.wait()
        return await lease(key, **share)

    monkeypatch.setattr(cache, "lease", late)
    workers.may_stage.clear()
    host.prefetch(version(5))
    waiting = [asyncio.create_task(desk.lease(f"r{number}", version(number))) for number in (1, 2, 3, 4)]
    await until(lambda: len(workers.stagings) == 3 and len(host._files) == 4)
    fetched.set()
    await until(lambda: 5 in host._files)
    await desk.loader.unload(5)
    assert not desk.loader.holds(5)
    workers.may_stage.set()
    for task in asyncio.as_completed(waiting):
        (await task).release()


async def test_whoever_comes_back_while_there_is_no_room_is_served(
    desk: Desk, workers: Workers, cache: DiskCache, version: Versions
) -> None:
    async def use(request_id: str, number: int) -> None:
        (await desk.lease(request_id, version(number))).release()

    workers.may_stage.clear()
    first = [asyncio.create_task(use(f"first {number}", number)) for number in range(1, 6)]
    await until(lambda: len(workers.stagings) >= 3)
    for number in range(1, 6):
        (await cache.lease(version(number))).release()
    shut_out = next(number for number in range(1, 6) if number not in workers.stagings)
    first[shut_out - 1].cancel()
    await asyncio.gather(first[shut_out - 1], return_exceptions=True)
    again = asyncio.create_task(use("again", shut_out))
    workers.may_stage.set()
    await asyncio.gather(again, *(task for number, task in enumerate(first, start=1) if number != shut_out))
    assert shut_out in workers.places


async def test_a_version_on_disk_is_staged_with_all_threads_busy(
    workers: Workers, cache: DiskCache, version: Versions
) -> None:
    files = await cache.lease(version(1))
    loop, over = asyncio.get_running_loop(), threading.Event()
    taken = [loop.run_in_executor(None, over.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(10):
            await Transfers(workers).stage(version(1), files.path)
    finally:
        over.set()
        await asyncio.gather(*taken)
        files.release()
    assert workers.staged == {1}


@pytest.fixture
def namesakes(version: Versions) -> tuple[VersionKey, VersionKey]:
    """Two versions with the same id, as before and after a database restore."""
    return version(1), replace(version(2), version_id=1)


@pytest.mark.parametrize("where", ["slot", "host", "disk"])
async def test_other_bytes_under_an_id_are_dropped(
    desk: Desk, workers: Workers, version: Versions, namesakes: tuple[VersionKey, VersionKey], where: str
) -> None:
    before, after = namesakes
    for number, key in enumerate((before, after, before, after)):
        lease = await desk.lease(f"r{number}", key)
        assert workers.digests[1] == key.digest
        assert 1 in workers.named
        lease.release()
        if where != "slot":
            # Other versions evict it from its slot, or also from host memory.
            for other in (11, 12) if where == "host" else (11, 12, 13, 14, 15):
                (await desk.lease(f"r{number} {other}", version(other))).release()
    assert desk.loader.host.residency.used <= desk.loader.host.residency.capacity
    assert not desk.loader.host.residency.leases(1)
    assert workers.places.count(1) == 4


async def test_other_bytes_under_an_id_wait_for_requests_that_run(
    desk: Desk, workers: Workers, namesakes: tuple[VersionKey, VersionKey]
) -> None:
    before, after = namesakes
    running = await desk.lease("running", before)
    later = [asyncio.create_task(desk.lease(f"later {number}", after)) for number in range(3)]
    await asyncio.wait(later, timeout=0.2)
    assert not any(task.done() for task in later)
    assert workers.digests[1] == before.digest
    running.release()
    for task in later:
        (await task).release()
    assert workers.digests[1] == after.digest
    assert workers.stagings == [1, 1]


async def test_other_bytes_under_an_id_wait_for_those_on_their_way(
    desk: Desk, workers: Workers, namesakes: tuple[VersionKey, VersionKey]
) -> None:
    before, after = namesakes
    workers.may_stage.clear()
    first = asyncio.create_task(desk.lease("first", before))
    await until(lambda: workers.stagings)
    second = asyncio.create_task(desk.lease("second", after))
    await asyncio.sleep(0)
    workers.may_stage.set()
    lease = await first
    assert workers.digests[1] == before.digest
    lease.release()
    (await second).release()
    assert workers.digests[1] == after.digest


async def test_a_prefetch_never_replaces_bytes_in_use(
    desk: Desk, workers: Workers, namesakes: tuple[VersionKey, VersionKey]
) -> None:
    before, after = namesakes
    running = await desk.lease("running", before)
    desk.loader.prefetch(after)
    running.release()
    (await desk.lease("again", before)).release()
    assert (workers.stagings, workers.digests[1]) == ([1], before.digest)


async def test_a_wait_for_old_bytes_ends_at_deadline_or_engine_death(
    desk: Desk, namesakes: tuple[VersionKey, VersionKey]
) -> None:
    before, after = namesakes
    running = await desk.lease("running", before)
    with pytest.raises(Busy):
        await desk.lease("hurried", after, deadline_s=0.05)
    patient = asyncio.create_task(desk.lease("patient", after))
    await asyncio.sleep(0)
    await desk.loader.close()
    with pytest.raises(EngineUnavailable):
        await patient
    running.release()


async def test_ids_are_not_remembered_without_end(
    desk: Desk, version: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_MOST_DIGESTS", 20)
    for number in range(1, 60):
        (await desk.lease(f"r{number}", version(number))).release()
        assert len(desk.loader._digests) <= 20
