"""Prefetching on both databases: staging after a start, by requests and by alias moves, and its exceptions."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from adapters.cache import DiskCache
from adapters.identity import VersionKey
from adapters.stores.local import LocalStore
from app.database.adapters import set_targets
from app.domain.adapters import Version
from app.engine.status import EngineState, StatusReport, VersionResidency
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.worker import DeletionWorker
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.publishing.blobs import BlobService
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)

SLUG, OTHER = "pricing", "supply-chain"


class Engine(NoEngine):
    """Fake engine that stages prefetched versions immediately.

    Attributes:
        staged: version id -> bytes, in host memory.
        host_bytes: size of its host memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = EngineState.READY
        self.staged: dict[int, int] = {}
        self.host_bytes = 2**20
        self.restarts = 0

    def report(self) -> StatusReport:
        rows = tuple(VersionResidency(one, "host", 0, 0, 0, size, 0.0, False) for one, size in self.staged.items())
        status = replace(
            self.shown.status,
            restarts=self.restarts,
            host_bytes=self.host_bytes,
            host_used_bytes=sum(self.staged.values()),
        )
        return StatusReport(status, rows, ())

    def prefetch(self, key: VersionKey) -> None:
        super().prefetch(key)
        self.staged[key.version_id] = key.size


@dataclass
class Place:
    """Prefetcher of one node. A new instance over the same ``home`` is that of the next start."""

    node: Node
    home: Path
    engine: Engine = field(default_factory=Engine)
    in_flight: InFlightLookups = field(default_factory=InFlightLookups)

    def __post_init__(self) -> None:
        self.prefetcher = Prefetcher(
            self.node.database,
            self.engine,
            self.in_flight,
            self.path,
            base_digest=BASE_DIGEST,
            monotonic=self.node.clock.monotonic,
        )

    @property
    def path(self) -> Path:
        return self.home / "working-set.json"

    def restarted(self) -> "Place":
        return Place(self.node, self.home)

    async def turn(self, seconds: float = 2.0) -> list[int]:
        """Run the next turn and return the versions that it staged."""
        self.node.clock.advance(seconds)
        before = len(self.engine.prefetched)
        await self.prefetcher.advance()
        return self.engine.prefetched[before:]


@pytest.fixture
async def place(node: Node, tmp_path: Path) -> Place:
    for slug in (SLUG, OTHER):
        await node.tenants.create(slug, actor="cli")
    place = Place(node, tmp_path)
    await place.turn()
    return place


@pytest.fixture
async def versions(node: Node, place: Place) -> list[Version]:
    """Three adapters of one tenant, whose alias moves the prefetcher has already seen."""
    found = [await node.publish(SLUG, f"adapter-{number}", f"content {number}") for number in range(3)]
    await place.turn()
    place.engine.staged.clear()
    place.engine.prefetched.clear()
    node.clock.advance(100)
    return found


def ids(versions: list[Version]) -> list[int]:
    return [version.key.version_id for version in versions]


async def test_a_restart_stages_the_working_set_in_order_of_use(place: Place, versions: list[Version]) -> None:
    one, two, three = versions
    for version in (three, one, two, one):
        place.prefetcher.seen(version.key, SLUG)
    await place.prefetcher.close()
    again = place.restarted()
    await again.prefetcher.prepare()
    assert await again.turn() == ids([one, two, three])
    assert await again.turn() == []


async def test_a_turn_leaves_vllms_metrics_alone(place: Place) -> None:
    """Writing vLLM's metrics takes a millisecond, and turns come four times a second."""
    await place.turn()
    assert place.engine.calls == []


async def test_what_does_not_fit_any_more_ends_it(place: Place, versions: list[Version]) -> None:
    for version in versions:
        place.prefetcher.seen(version.key, SLUG)
    await place.prefetcher.close()
    again = place.restarted()
    again.engine.host_bytes = versions[0].key.size * 2
    await again.prefetcher.prepare()
    assert await again.turn() == ids(versions)[:0:-1]
    assert await again.turn() == []


async def test_the_working_set_is_written_now_and_then(place: Place, versions: list[Version]) -> None:
    place.prefetcher.seen(versions[0].key, SLUG)
    await place.turn(31)
    assert str(versions[0].key.digest) in place.path.read_text()
    assert SLUG not in place.path.read_text()
    assert "adapter-0" not in place.path.read_text()
    written = place.path.stat()
    await place.turn(31)
    assert place.path.stat().st_ino == written.st_ino


@pytest.mark.parametrize("content", ["", "{}", '{"versions": [{"id": 2147483647, "digest": "' + "a" * 64 + '"}]}'])
async def test_an_unusable_file_is_no_error_at_start(place: Place, content: str) -> None:
    place.path.write_text(content)
    again = place.restarted()
    await again.prefetcher.prepare()
    assert await again.turn() == []


async def test_an_id_that_is_another_version_now_is_not_staged(place: Place, versions: list[Version]) -> None:
    place.prefetcher.seen(replace(versions[0].key, weights_digest="f" * 64), SLUG)
    await place.prefetcher.close()
    again = place.restarted()
    await again.prefetcher.prepare()
    assert await again.turn() == []


async def test_only_versions_that_are_ready_are_staged(node: Node, place: Place, versions: list[Version]) -> None:
    for version in versions:
        place.prefetcher.seen(version.key, SLUG)
    await place.prefetcher.close()
    await node.adapters.quarantine(versions[2].key.version_id, "it failed")
    again = place.restarted()
    await again.prefetcher.prepare()
    assert await again.turn() == ids([versions[1], versions[0]])
    other_base = Prefetcher(node.database, place.engine, place.in_flight, place.path, base_digest="c" * 64)
    await other_base.prepare()
    await other_base.advance()
    assert place.engine.prefetched == []


async def test_an_engine_that_was_started_again_gets_the_working_set(place: Place, versions: list[Version]) -> None:
    for version in versions:
        place.prefetcher.seen(version.key, SLUG)
    place.engine.staged = dict.fromkeys(ids(versions), 1)
    assert await place.turn() == []
    place.engine.state = EngineState.RESTARTING
    place.engine.staged.clear()
    place.engine.restarts = 1
    assert await place.turn() == []
    place.engine.state = EngineState.READY
    assert await place.turn() == ids(versions)[::-1]


async def test_what_a_tenants_requests_predict_is_staged_for_it_alone(place: Place, versions: list[Version]) -> None:
    one, two, _ = versions
    for version in (one, two, one):
        place.prefetcher.seen(version.key, SLUG)
    place.prefetcher.seen(one.key, OTHER)
    place.engine.staged[one.key.version_id] = 1
    assert await place.turn() == [two.key.version_id]
    del place.engine.staged[two.key.version_id]
    place.prefetcher.seen(one.key, OTHER)
    assert await place.turn(100) == []


async def test_nothing_is_staged_where_there_is_no_room(place: Place, versions: list[Version]) -> None:
    place.engine.host_bytes = 1
    place.engine.staged = {10**6: 1}
    for version in versions:
        place.prefetcher.seen(version.key, SLUG)
    assert await place.turn() == []


async def test_an_alias_move_on_another_node_stages_the_version(
    node: Node, other_node: Node, place: Place, versions: list[Version]
) -> None:
    newer = await other_node.publish(SLUG, "adapter-0", "newer content")
    assert await place.turn() == [newer.key.version_id]
    place.engine.staged.clear()
    async with other_node.database.write() as connection:
        line = await node.adapters.get_adapter(SLUG, "adapter-0")
        targets = {versions[0].key.version_id: 90, newer.key.version_id: 10}
        how: dict[str, Any] = {"at": node.clock(), "actor": "cli", "action": "split"}
        await set_targets(connection, line.id, "default", targets, **how)
    assert sorted(await place.turn()) == sorted(targets)


def worker(place: Place) -> DeletionWorker:
    node, store = place.node, LocalStore(place.home / "blobs")
    return DeletionWorker(
        node.database,
        place.engine,
        DiskCache(place.home / "cache", store, 10**6),
        BlobService(node.database, store, "1" * 32, clock=node.clock),
        place.in_flight,
        "1" * 32,
        forget=place.prefetcher.forget,
        clock=node.clock,
    )


async def test_a_deleted_version_leaves_no_trace(node: Node, place: Place, versions: list[Version]) -> None:
    gone = versions[1]
    for version in (*versions, *versions):
        place.prefetcher.seen(version.key, SLUG)
    await place.prefetcher.save()
    assert gone.key.digest in place.path.read_text()
    await node.deletions.delete_version(SLUG, gone.adapter, gone.number, force=True, actor="cli")
    await worker(place).advance()
    assert gone.key.digest not in place.path.read_text()
    assert versions[0].key.digest in place.path.read_text()
    place.prefetcher.seen(versions[0].key, SLUG)
    assert gone.key.version_id not in await place.turn(100)
    again = place.restarted()
    await again.prefetcher.prepare()
    assert sorted(await again.turn()) == sorted(ids([versions[0], versions[2]]))


async def test_a_start_removes_what_was_deleted_meanwhile(node: Node, place: Place, versions: list[Version]) -> None:
    gone = versions[0]
    place.prefetcher.seen(gone.key, SLUG)
    await place.prefetcher.close()
    await node.deletions.delete_version(SLUG, gone.adapter, gone.number, force=True, actor="cli")
    again = place.restarted()
    await again.prefetcher.prepare()
    assert gone.key.digest not in again.path.read_text()
    assert await again.turn() == []


async def test_a_deletion_waits_for_what_is_on_its_way_to_the_engine(
    node: Node, place: Place, versions: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the deletion barrier at the moment when the engine is asked."""
    barriers = []

    def prefetch(key: VersionKey) -> None:
        barriers.append(place.in_flight.barrier([key.version_id]))
        assert not barriers[-1].passed

    monkeypatch.setattr(place.engine, "prefetch", prefetch)
    for version in versions:
        place.prefetcher.seen(version.key, SLUG)
    await place.turn()
    assert barriers
    assert all(barrier.passed for barrier in barriers)
