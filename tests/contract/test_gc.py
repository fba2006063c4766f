"""Garbage collection on both databases."""

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from adapters.errors import StoreUnavailable
from adapters.stores.local import LocalStore
from app.database.deletions import insert_deletion, list_deletions
from app.database.tables import audit, idempotency, nodes, uploads
from app.domain.deletions import ALIVE_S, CLAIM_S, BlobFate
from app.services.deletion.gc import Dangling, GcService
from app.services.operations.store_owner import StoreOwner
from app.services.publishing.blobs import BlobService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import LimitSettings
from tests.support.deleting import FIRST, Place, publish, put
from tests.support.registry import Node, SettableClock, new_version

pytest_plugins = ("tests.support.registry_fixtures",)

COLLECTOR = "c" * 32
AGE = timedelta(hours=24)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
async def gc(node: Node, store: LocalStore, clock: SettableClock) -> GcService:
    await StoreOwner(node.database, store).ensure()
    blobs = BlobService(node.database, store, COLLECTOR, clock=clock)
    return GcService(
        node.database, store, blobs, UploadSweeper(node.database, store, LimitSettings(), clock=clock), clock=clock
    )


@pytest.fixture
async def tenant_id(node: Node) -> int:
    return (await node.tenants.create("pricing", actor="cli")).id


def orphan(store: LocalStore, folder: Path, content: str, *, written: datetime) -> set[str]:
    """Store two blobs without a version and return their digests."""
    put(store, folder, content)
    new = new_version(content, written)
    found = {new.config_digest, new.weights_digest}
    date(folder.parent / "blobs", found, written)
    return found


def date(root: Path, digests: set[str], written: datetime) -> None:
    for digest in digests:
        os.utime(root / "sha256" / digest[:2] / digest, (written.timestamp(), written.timestamp()))


async def test_only_old_orphans_are_listed_and_removed(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    files, now = tmp_path / "files", node.clock()
    used = await publish(node, store, files, "used")
    date(tmp_path / "blobs", {used.key.config_digest, used.key.weights_digest}, now - 2 * AGE)
    old = orphan(store, files, "old", written=now - AGE - timedelta(seconds=1))
    young = orphan(store, files, "young", written=now - AGE + timedelta(seconds=1))
    findings = await gc.survey(min_age=AGE)
    assert {blob.digest for blob in findings.orphans} == old
    assert (findings.young, findings.dangling) == (2, ())
    assert all(store.size(digest) for digest in old)
    fates = await gc.collect(findings)
    assert set(fates) == old
    assert all(fate.gone_at == now for fate in fates.values())
    assert all(store.size(digest) is None for digest in old)
    assert all(store.size(digest) for digest in young | {used.key.config_digest, used.key.weights_digest})
    assert (await gc.survey(min_age=AGE)).orphans == ()
    async with node.database.read() as connection:
        (deletion,) = await list_deletions(connection, tenant="", since=None, before=None, limit=9)
        rows = await connection.execute(
            select(audit.c.tenant, audit.c.subject).where(audit.c.action == "deletion.finish")
        )
        assert [tuple(row) for row in rows] == [(None, "gc")]
    assert (deletion.finished_at, set(deletion.blobs)) == (now, old)


async def test_blobs_of_an_upload_stay_until_it_ends(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    now = node.clock()
    digest, other = sorted(orphan(store, tmp_path / "files", "old", written=now - 2 * AGE))
    await upload(node, tenant_id, "a" * 32, {"adapter_model.safetensors": {"sha256": digest, "size": 1}}, "open")
    await upload(node, tenant_id, "b" * 32, {"adapter_model.safetensors": {"sha256": other, "size": 1}}, "aborted")
    findings = await gc.survey(min_age=AGE)
    assert [blob.digest for blob in findings.orphans] == [other]
    async with node.database.write() as connection:
        await connection.execute(uploads.update().values(state="done"))
    assert len((await gc.survey(min_age=AGE)).orphans) == 2


async def test_an_upload_begun_during_a_sweep_keeps_its_bytes(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    old = orphan(store, tmp_path / "files", "old", written=node.clock() - 2 * AGE)
    findings = await gc.survey(min_age=AGE)
    digest = min(old)
    await upload(node, tenant_id, "a" * 32, {"adapter_model.safetensors": {"sha256": digest, "size": 1}}, "finishing")
    fates = await gc.collect(findings)
    assert fates[digest].kept == "an upload under way has the same bytes"
    assert store.size(digest) is not None
    assert store.size(max(old)) is None


async def test_a_version_published_during_a_sweep_keeps_its_bytes(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    old = orphan(store, tmp_path / "files", "old", written=node.clock() - 2 * AGE)
    findings = await gc.survey(min_age=AGE)
    await node.publish("pricing", "prices", "old")
    assert {fate.kept for fate in (await gc.collect(findings)).values()} == {"another version has the same bytes"}
    assert all(store.size(digest) for digest in old)


async def upload(node: Node, tenant_id: int, identity: str, files: object, state: str) -> None:
    now = node.clock()
    row = {"id": identity, "tenant_id": tenant_id, "adapter": "prices", "state": state, "files": files, "options": {}}
    times = {"created_at": now, "updated_at": now, "expires_at": now + timedelta(hours=1), "created_by": "key"}
    async with node.database.write() as connection:
        await connection.execute(insert(uploads).values(**row, **times))


async def test_versions_without_bytes_are_shown_and_left_alone(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "a")
    store.delete(version.key.weights_digest)
    await node.publish("pricing", "gone", "b")
    await node.deletions.delete_adapter("pricing", "gone", force=True, actor="key")
    findings = await gc.survey(min_age=AGE)
    assert findings.dangling == (Dangling("pricing", "prices@1", version.key.weights_digest),)
    await gc.collect(findings)
    assert (await node.adapters.get_version("pricing", "prices", 1)).key == version.key


async def test_what_a_deletion_works_on_is_left_to_it(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "a")
    date(tmp_path / "blobs", {version.key.config_digest, version.key.weights_digest}, node.clock() - 2 * AGE)
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="key")
    assert (await gc.survey(min_age=AGE)).orphans == ()


async def test_a_collection_that_dies_is_finished_by_a_server(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path
) -> None:
    old = orphan(store, tmp_path / "files", "old", written=node.clock() - 2 * AGE)
    place = Place(FIRST, tmp_path / "home", node.database, store, node.clock)
    await place.start()
    async with node.database.write() as connection:
        identity = await insert_deletion(
            connection, [], tenant="", subject="gc", at=node.clock(), by="cli", blobs=dict.fromkeys(old, BlobFate())
        )
    assert await BlobService(node.database, store, COLLECTOR, clock=node.clock).claim(identity) is not None
    await place.worker.advance()
    assert all(store.size(digest) for digest in old)
    node.clock.advance(max(CLAIM_S, ALIVE_S))
    await place.worker.advance()
    assert all(store.size(digest) is None for digest in old)
    assert (await place.deletions.get(identity, tenant=None))[0].finished_at == node.clock()


async def test_rows_that_say_nothing_any_more_are_counted_and_removed(
    node: Node, gc: GcService, tenant_id: int
) -> None:
    now = node.clock()
    async with node.database.write() as connection:
        for key, age in (("old", timedelta(hours=25)), ("young", timedelta(hours=22))):
            values = {"actor": "key", "key": key, "request": "0" * 64, "created_at": now - age}
            await connection.execute(insert(idempotency).values(**values))
        for identity, age in (("a" * 32, timedelta(days=8)), ("b" * 32, timedelta(days=6))):
            values = {"id": identity, "name": "host", "started_at": now - age, "seen_at": now - age}
            await connection.execute(insert(nodes).values(**values))
    await upload(node, tenant_id, "a" * 32, {}, "open")
    node.clock.advance(3601)
    findings = await gc.survey(min_age=AGE)
    assert (findings.old_answers, findings.unseen_nodes, findings.expired_uploads) == (1, 1, 1)
    await gc.collect(findings)
    again = await gc.survey(min_age=AGE)
    assert (again.old_answers, again.unseen_nodes, again.expired_uploads) == (0, 0, 0)
    async with node.database.read() as connection:
        assert (await connection.scalars(select(idempotency.c.key))).all() == ["young"]
        assert (await connection.scalars(select(nodes.c.id))).all() == ["b" * 32]


async def test_a_mute_store_ends_a_deletion_and_a_retry_resumes(
    node: Node, gc: GcService, tenant_id: int, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = orphan(store, tmp_path / "files", "old", written=node.clock() - 2 * AGE)
    findings = await gc.survey(min_age=AGE)

    def fail(digest: str) -> None:
        raise StoreUnavailable("told to")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", fail)
        with pytest.raises(StoreUnavailable):
            await gc.collect(findings)
    # Blobs of an unfinished collection are already claimed, and a server finishes them.
    assert (await gc.survey(min_age=AGE)).orphans == ()
    node.clock.advance(CLAIM_S)
    place = Place(FIRST, tmp_path / "home", node.database, store, node.clock)
    await place.start()
    await place.worker.advance()
    assert all(store.size(digest) is None for digest in old)
