"""Deletion on both databases: references to a version, two nodes, an absent node, a crash at any point."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from adapters.identity import ModelName
from adapters.stores.local import LocalStore
from app.database import adapters
from app.database.tables import audit, canaries, pins
from app.domain.adapters import Version
from app.domain.deletions import ALIVE_S, CLAIM_S
from app.domain.errors import Conflict, InvalidRequest, NotFound
from tests.support.deleting import FIRST, SECOND, Place, publish, put
from tests.support.registry import Node, SettableClock, new_version

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
async def place(node: Node, store: LocalStore, clock: SettableClock, tmp_path: Path) -> Place:
    await node.tenants.create("pricing", actor="cli")
    made = Place(FIRST, tmp_path / "first", node.database, store, clock)
    await made.start()
    return made


@pytest.fixture
async def other(other_node: Node, place: Place, store: LocalStore, clock: SettableClock, tmp_path: Path) -> Place:
    made = Place(SECOND, tmp_path / "second", other_node.database, store, clock)
    await made.start()
    return made


@pytest.fixture
async def version(node: Node, place: Place, store: LocalStore, tmp_path: Path) -> Version:
    return await publish(node, store, tmp_path / "files", "a")


def sizes(store: LocalStore, version: Version) -> list[int | None]:
    return [store.size(digest) for digest in (version.key.config_digest, version.key.weights_digest)]


async def test_after_the_report_nothing_finds_the_version(
    node: Node, place: Place, other: Place, version: Version, store: LocalStore
) -> None:
    for one in (place, other):
        await one.serve(version)
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    running, views = await place.report(deletion)
    assert running.finished_at is None
    assert views[FIRST].disk_gone_at == views[FIRST].engine_gone_at == place.clock()
    assert (views[SECOND].reachable, views[SECOND].disk_gone_at) == (True, None)
    assert None not in sizes(store, version)
    place.clock.advance(1)
    await other.worker.advance()
    ended, views = await place.report(deletion)
    assert ended.finished_at == place.clock()
    assert all(view.engine_gone_at and view.disk_gone_at for view in views.values())
    assert {fate.gone_at for fate in ended.blobs.values()} == {place.clock()}
    assert sizes(store, version) == [None, None]
    assert [await one.has(version) for one in (place, other)] == [(False, False)] * 2
    assert (await node.adapters.get_adapter("pricing", "prices")).versions == ()
    assert (await node.adapters.list_versions("pricing", "prices")).data == ()
    with pytest.raises(NotFound):
        await node.adapters.get_version("pricing", "prices", 1)


async def test_a_replica_confirms_and_a_server_finishes(
    place: Place, other: Place, version: Version, store: LocalStore
) -> None:
    replica = replace(other, finishes=False)
    for one in (place, replica):
        await one.serve(version)
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    for _ in range(3):
        await replica.worker.advance()
    running, views = await place.report(deletion)
    assert all(view.engine_gone_at and view.disk_gone_at for view in views.values())
    assert (running.finished_at, running.blobs) == (None, {})
    await place.worker.advance()
    assert (await place.report(deletion))[0].finished_at is not None
    assert sizes(store, version) == [None, None]


async def test_a_cached_name_ends_before_the_grace_period(
    node: Node, other_node: Node, place: Place, other: Place, version: Version
) -> None:
    tenant, name = await node.tenants.get("pricing"), ModelName("prices")
    assert (await other_node.adapters.resolve(tenant.id, name)).key == version.key
    await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    with other.in_flight.lookup():
        await other.worker.advance()
        with pytest.raises(NotFound):
            await other_node.adapters.resolve(tenant.id, name)


async def test_lookups_in_flight_come_first(node: Node, place: Place, version: Version, store: LocalStore) -> None:
    """A request can hold a version in two ways.

    A running request has a lease. A request that has resolved the version may not have reached the engine.
    """
    await place.serve(version)
    with place.in_flight.lookup() as lookup:
        deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
        await place.worker.advance()
        assert place.engine.unloaded == []
        lookup.resolved(version.key.version_id)
        await place.worker.advance()
        assert place.engine.unloaded == []
        lease = await place.cache.lease(version.key)
    await place.worker.advance()
    assert place.engine.unloaded == [version.key.version_id]
    assert await place.has(version) == (False, True)
    assert (await place.report(deletion))[0].finished_at is None
    assert None not in sizes(store, version)
    lease.release()
    await place.worker.advance()
    assert (await place.report(deletion))[0].finished_at is not None
    assert await place.has(version) == (False, False)


async def test_what_the_engine_still_holds_is_not_called_gone(place: Place, version: Version) -> None:
    await place.serve(version)

    class Stubborn(type(place.engine)):  # type: ignore[misc]
        """Engine whose requests have not ended."""

        async def unload(self, version_id: int) -> None:
            self.unloaded.append(version_id)

    place.engine.__class__ = Stubborn
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    for _ in range(3):
        await place.worker.advance()
    running, views = await place.report(deletion)
    assert (running.finished_at, views[FIRST].engine_gone_at, running.blobs) == (None, None, {})
    place.engine.loaded.clear()
    await place.worker.advance()
    assert (await place.report(deletion))[0].finished_at is not None


async def test_bytes_of_another_tenants_version_stay_everywhere(
    node: Node, place: Place, version: Version, store: LocalStore
) -> None:
    await node.tenants.create("supply-chain", actor="cli")
    theirs = await node.publish("supply-chain", "stock", "a")
    await place.serve(version)
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    ended, _ = await place.report(deletion)
    assert ended.finished_at is not None
    assert [fate.kept for fate in ended.blobs.values()] == ["another version has the same bytes"] * 2
    assert [deleted.shared for deleted in ended.versions] == [True]
    assert await place.has(theirs) == (False, True)
    assert None not in sizes(store, theirs)
    await place.deletions.delete_adapter("supply-chain", "stock", force=True, actor="key")
    await place.worker.advance()
    assert await place.has(theirs) == (False, False)
    assert sizes(store, theirs) == [None, None]


async def test_an_absent_node_is_named_and_catches_up(place: Place, other: Place, version: Version) -> None:
    await other.serve(version)
    place.clock.advance(ALIVE_S)
    await place.nodes.beat()
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    ended, views = await place.report(deletion)
    assert ended.finished_at is not None
    assert (views[SECOND].reachable, views[SECOND].disk_gone_at) == (False, None)
    assert await other.cache.holds(version.key)
    back = other.restarted()
    await back.start()
    assert not await back.cache.holds(version.key)
    place.clock.advance(60)
    await back.worker.advance()
    ended, views = await place.report(deletion)
    assert (views[SECOND].reachable, views[SECOND].disk_gone_at) == (True, place.clock())
    assert ended.finished_at is not None
    assert ended.finished_at < place.clock()


async def test_a_node_that_only_hung_makes_it_good_without_a_restart(
    place: Place, other: Place, version: Version
) -> None:
    await other.serve(version)
    place.clock.advance(ALIVE_S)
    await place.nodes.beat()
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    assert (await place.report(deletion))[0].finished_at is not None
    await other.worker.advance()
    assert await other.has(version) == (False, False)
    assert (await place.report(deletion))[1][SECOND].disk_gone_at is not None


_STEPS: dict[str, Callable[[Place, str], object]] = {
    "nothing": lambda place, _: None,
    "the engine": lambda place, identity: leave(place, identity, disk=False),
    "engine and disk": lambda place, identity: leave(place, identity, disk=True),
    "the claim": lambda place, identity: claimed(place, identity, delete=False),
    "half of the blobs": lambda place, identity: claimed(place, identity, delete=True),
}


async def leave(place: Place, identity: str, *, disk: bool) -> None:
    deletion, _ = await place.deletions.get(identity, tenant=None)
    assert await place.worker.leave_engine(deletion)
    if disk:
        assert await place.worker.leave_disk(deletion)


async def claimed(place: Place, identity: str, *, delete: bool) -> None:
    await leave(place, identity, disk=True)
    fates = await place.blobs.claim(identity)
    assert fates is not None
    if delete:
        place.store.delete(next(iter(fates)))


@pytest.mark.parametrize("done", _STEPS)
async def test_a_process_that_dies_is_followed_by_one_that_finishes(
    place: Place, version: Version, store: LocalStore, done: str
) -> None:
    await place.serve(version)
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    if (step := _STEPS[done](place, deletion.id)) is not None:
        await step  # type: ignore[misc]
    again = place.restarted()
    await again.start()
    await again.worker.advance()
    ended, views = await again.report(deletion)
    assert ended.finished_at is not None
    assert all(fate.gone_at for fate in ended.blobs.values())
    assert views[FIRST].disk_gone_at is not None
    assert sizes(store, version) == [None, None]
    assert await again.has(version) == (False, False)
    assert await finished_rows(again) == ["prices@1"]


async def finished_rows(place: Place) -> list[str]:
    statement = select(audit.c.subject).where(audit.c.action == "deletion.finish")
    async with place.database.read() as connection:
        return list(await connection.scalars(statement))


async def test_a_dead_nodes_blobs_are_taken_over_once_claims_are_old(
    place: Place, other: Place, version: Version, store: LocalStore
) -> None:
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await claimed(place, deletion.id, delete=False)
    await other.worker.advance()
    assert None not in sizes(store, version)
    place.clock.advance(CLAIM_S)
    await other.nodes.beat()
    await other.worker.advance()
    assert sizes(store, version) == [None, None]
    assert (await other.report(deletion))[0].finished_at is not None


async def test_two_nodes_at_once_finish_it_once(place: Place, other: Place, version: Version) -> None:
    await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    for _ in range(3):
        await asyncio.gather(place.worker.advance(), other.worker.advance())
    assert await finished_rows(place) == ["prices@1"]


async def test_a_publisher_waits_for_a_deletion_of_the_same_bytes(
    node: Node, place: Place, other: Place, version: Version, store: LocalStore, tmp_path: Path
) -> None:
    """The row and the claim race: the deleter did not see the row, but the publisher sees the claim."""
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await leave(other, deletion.id, disk=True)
    await leave(place, deletion.id, disk=True)
    fates = await place.blobs.claim(deletion.id)
    assert fates is not None
    put(store, tmp_path / "files", "a")
    again = await node.publish("pricing", "prices", "a")
    waiting = asyncio.create_task(other.blobs.settled(fates))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    # The deleter looked at the rows before the new one came, so it does this next:
    for digest in fates:
        store.delete(digest)
    await place.worker.end(deletion.id)
    await waiting
    put(store, tmp_path / "files", "a")
    assert None not in sizes(store, again)
    await place.worker.advance()
    assert None not in sizes(store, again)


async def test_bytes_published_before_the_claim_are_kept(
    node: Node, place: Place, version: Version, store: LocalStore, tmp_path: Path
) -> None:
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await leave(place, deletion.id, disk=True)
    again = await publish(node, store, tmp_path / "files", "a")
    await place.worker.advance()
    ended, _ = await place.report(deletion)
    assert ended.finished_at is not None
    assert all(fate.kept for fate in ended.blobs.values())
    assert None not in sizes(store, again)


async def test_references_to_a_version_are_named_and_force_wins(node: Node, place: Place, version: Version) -> None:
    other = await node.publish("pricing", "prices", "b")
    line = await node.adapters.get_adapter("pricing", "prices")
    ids = {1: version.key.version_id, 2: other.key.version_id}
    now = node.clock()
    async with node.database.write() as connection:
        for alias, targets in (("stable", {ids[1]: 100}), ("split", {ids[1]: 30, ids[2]: 70})):
            await adapters.set_targets(connection, line.id, alias, targets, at=now, actor="key", action="move")
        await connection.execute(insert(pins).values(version_id=ids[1], created_at=now, created_by="key"))
        running = {"policy": {}, "step": 0, "revision": 0, "step_started_at": now, "state": "running"}
        row = running | {"adapter_id": line.id, "alias": "default", "created_at": now, "created_by": "key"}
        await connection.execute(insert(canaries).values(baseline_id=ids[1], candidate_id=ids[2], **row))
    with pytest.raises(Conflict) as refused:
        await place.deletions.delete_version("pricing", "prices", 1, force=False, actor="key")
    for holder in (
        "the alias 'stable'",
        "the alias 'split'",
        "the canary of the alias 'default'",
        "the pin of prices@1",
    ):
        assert holder in refused.value.message
    await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    assert (await node.adapters.get_adapter("pricing", "prices")).aliases == {"default": {2: 100}, "split": {2: 100}}
    async with node.database.read() as connection:
        assert (await connection.scalars(select(pins.c.version_id))).all() == []
        assert (await connection.scalars(select(canaries.c.state))).all() == ["cancelled"]


async def test_what_nothing_holds_goes_without_force(node: Node, place: Place, version: Version) -> None:
    await node.publish("pricing", "prices", "b")
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=False, actor="key")
    assert deletion.subject == "prices@1"
    assert not deletion.forced


async def test_a_whole_adapter_goes_with_all_its_versions(
    node: Node, place: Place, version: Version, store: LocalStore, tmp_path: Path
) -> None:
    second = await publish(node, store, tmp_path / "files", "b")
    with pytest.raises(Conflict, match="the alias 'default'"):
        await place.deletions.delete_adapter("pricing", "prices", force=False, actor="key")
    deletion, _ = await place.deletions.delete_adapter("pricing", "prices", force=True, actor="key")
    assert [deleted.name for deleted in deletion.versions] == ["prices@1", "prices@2"]
    await place.worker.advance()
    assert (await place.report(deletion))[0].finished_at is not None
    assert sizes(store, version) + sizes(store, second) == [None] * 4
    tenant = await node.tenants.get("pricing")
    for name in (ModelName("prices"), ModelName("prices", alias=None, number=2)):
        with pytest.raises(NotFound):
            await node.adapters.resolve(tenant.id, name)


async def test_reports_do_not_pass_to_a_reused_slug(node: Node, place: Place, version: Version) -> None:
    await node.tenants.create("supply-chain", actor="cli")
    deletion, _ = await place.deletions.delete_adapter("pricing", "prices", force=True, actor="key")
    assert (await place.deletions.get(deletion.id, tenant="pricing"))[0] == deletion
    for identity in (deletion.id, "0" * 32, "nonsense", "\0", "A" * 32):
        with pytest.raises(NotFound, match="There is no deletion"):
            await place.deletions.get(identity, tenant="supply-chain")
    assert (await place.deletions.list_all(tenant="supply-chain")).data == ()
    await node.tenants.delete("pricing", actor="cli")
    node.clock.advance(1)
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(NotFound):
        await place.deletions.get(deletion.id, tenant="pricing")
    assert (await place.deletions.list_all(tenant="pricing")).data == ()
    assert [one.id for one, _ in (await place.deletions.list_all(tenant=None)).data] == [deletion.id]


async def test_reports_are_listed_newest_first_page_by_page(node: Node, place: Place) -> None:
    made = []
    for number, content in enumerate("abcde"):
        await node.publish("pricing", "prices", content)
        made.append(
            (await place.deletions.delete_version("pricing", "prices", number + 1, force=True, actor="k"))[0].id
        )
        node.clock.advance(number % 2)  # some of them at the same moment
    listed: list[str] = []
    cursor = None
    while True:
        page = await place.deletions.list_all(tenant="pricing", limit=2, cursor=cursor)
        listed += [deletion.id for deletion, _ in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(listed) == sorted(made)
    times = {deletion.id: deletion.requested_at for deletion, _ in (await place.deletions.list_all(tenant=None)).data}
    assert [times[one] for one in listed] == sorted(times.values(), reverse=True)
    overflow = base64.urlsafe_b64encode(f"0001-01-01T00:00:00+14:00/{'a' * 32}".encode()).decode()
    for bad in ("nonsense", "MjAyNi0wMy0wMVQxMjowMDowMC9hYg==", overflow):
        with pytest.raises(InvalidRequest, match=r"^cursor"):
            await place.deletions.list_all(tenant="pricing", cursor=bad)


async def test_a_forgotten_node_registers_again(place: Place, clock: SettableClock) -> None:
    clock.advance(timedelta(days=30).total_seconds())
    assert [peer.node.forgotten(clock()) for peer in await place.nodes.peers()] == [True]
    await place.nodes.beat()
    assert [peer.alive for peer in await place.nodes.peers()] == [True]


async def test_a_start_sweeps_only_unneeded_files(
    node: Node, place: Place, version: Version, store: LocalStore, tmp_path: Path
) -> None:
    await place.serve(version)
    await publish(node, store, tmp_path / "files", "b", adapter="costs")
    gone = new_version("gone", place.clock())
    put(store, tmp_path / "files", "gone")
    stranger = await publish(node, store, tmp_path / "files", "gone", adapter="old")
    await place.serve(stranger)
    await place.deletions.delete_adapter("pricing", "old", force=True, actor="key")
    assert gone.config_digest == stranger.key.config_digest
    again = place.restarted()
    await again.start()
    assert await again.cache.holds(version.key)
    assert not await again.cache.holds(stranger.key)
