"""Guard of engine replicas on both databases: a request that was resolved before a deletion loads nothing after it."""

from pathlib import Path

import pytest

from adapters.stores.local import LocalStore
from app.domain.adapters import Version
from app.domain.errors import NotFound
from app.services.deletion.version_guard import VersionGuard
from tests.support.deleting import FIRST, SECOND, Place, publish
from tests.support.registry import Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
def guard(other_node: Node) -> VersionGuard:
    return VersionGuard(other_node.database)


@pytest.fixture
async def gateway(node: Node, store: LocalStore, clock: SettableClock, tmp_path: Path) -> Place:
    await node.tenants.create("pricing", actor="cli")
    made = Place(FIRST, tmp_path / "first", node.database, store, clock)
    await made.start()
    return made


@pytest.fixture
async def replica(
    other_node: Node, gateway: Place, store: LocalStore, clock: SettableClock, guard: VersionGuard, tmp_path: Path
) -> Place:
    made = Place(SECOND, tmp_path / "second", other_node.database, store, clock, in_flight=guard)
    await made.start()
    return made


@pytest.fixture
async def version(node: Node, gateway: Place, store: LocalStore, tmp_path: Path) -> Version:
    return await publish(node, store, tmp_path / "files", "a")


async def test_a_request_held_until_after_the_deletion_loads_nothing(
    gateway: Place, replica: Place, version: Version, guard: VersionGuard
) -> None:
    async with guard.request(version.key):
        await replica.serve(version)
    deletion, _ = await gateway.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    for place in (gateway, replica):
        await place.worker.advance()
    ended, _ = await replica.report(deletion)
    assert ended.finished_at is not None
    with pytest.raises(NotFound, match="deleted"):
        async with guard.request(version.key):
            await replica.serve(version)
    assert await replica.has(version) == (False, False)


async def test_a_deletion_waits_for_a_request_past_the_guard(
    gateway: Place, replica: Place, version: Version, guard: VersionGuard
) -> None:
    async with guard.request(version.key):
        deletion, _ = await gateway.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
        for place in (gateway, replica):
            await place.worker.advance()
        await replica.serve(version)
        waiting, _ = await replica.report(deletion)
        assert waiting.finished_at is None
    await replica.worker.advance()
    ended, _ = await replica.report(deletion)
    assert ended.finished_at is not None
    assert await replica.has(version) == (False, False)


async def test_a_known_version_is_not_looked_up_again(
    replica: Place, version: Version, guard: VersionGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guard.request(version.key):
        pass
    monkeypatch.setattr(replica.database, "read", None)
    async with guard.request(version.key):
        pass


async def test_the_base_model_needs_no_look_up(
    replica: Place, guard: VersionGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica.database, "read", None)
    async with guard.request(None):
        pass
