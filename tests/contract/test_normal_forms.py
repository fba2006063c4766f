"""Versions whose engine reads a normal form of the uploaded files, on both databases; and versions of release 0.1.0."""

import json
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, text, update

from adapters.cache import DiskCache
from adapters.identity import ModelName, content_digest
from adapters.stores.local import LocalStore
from app.database.migrate import alembic_config, migration_connection, upgrade
from app.database.session import Database
from app.database.tables import deletions
from app.database.tenants import find_tenant
from app.database.versions import find_version_by_digest, insert_version
from app.domain.clock import utc_now
from app.domain.deletions import DeletedVersion
from app.services.catalog.adapters import AdapterService
from app.services.deletion.gc import GcService
from app.services.publishing.blobs import BlobService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import LimitSettings
from tests.support.deleting import FIRST, Place, publish, put
from tests.support.registry import BASE_DIGEST, BASE_NAME, Node, SettableClock, file_pair, new_version

pytest_plugins = ("tests.support.registry_fixtures",)

AGE = timedelta(hours=24)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
async def place(node: Node, store: LocalStore, clock: SettableClock, tmp_path: Path) -> Place:
    await node.tenants.create("pricing", actor="cli")
    made = Place(FIRST, tmp_path / "first", node.database, store, clock)
    await made.start()
    return made


def blobs_of(content: str) -> set[str]:
    pair = file_pair(content)
    return {pair.config_digest, pair.weights_digest}


def stored(store: LocalStore) -> set[str]:
    return {blob.digest for blob in store.list_blobs()}


async def test_a_version_is_served_in_its_normal_form(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "odd", normal="plain")
    assert version.uploaded.digest == file_pair("odd").digest
    assert version.key.digest == file_pair("plain").digest
    assert version.key.lora_name == f"{version.key.version_id}@{file_pair('plain').digest[:16]}"
    async with node.database.read() as connection:
        owner = await find_tenant(connection, "pricing")
        assert owner is not None
        line = (await node.adapters.get_adapter("pricing", "prices")).id
        found = await find_version_by_digest(connection, line, file_pair("odd").digest)
        assert found == version
        assert await find_version_by_digest(connection, line, file_pair("plain").digest) is None
    resolved = await node.adapters.resolve(owner.id, ModelName("prices"))
    assert resolved.key == version.key
    async with await place.cache.lease(resolved.key) as lease:
        assert (lease.path / "adapter_config.json").read_text() == "config of plain"
    async with await place.cache.lease(version.uploaded) as lease:
        assert (lease.path / "adapter_config.json").read_text() == "config of odd"


async def test_a_version_in_normal_form_has_one_digest(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "plain")
    assert version.uploaded == version.key
    assert stored(store) == blobs_of("plain")


async def test_a_deletion_proves_that_both_are_gone_everywhere(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "odd", normal="plain")
    await place.serve(version)
    (await place.cache.lease(version.uploaded)).release()
    assert stored(store) == blobs_of("odd") | blobs_of("plain")
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    await place.worker.advance()
    ended, _ = await place.report(deletion)
    assert ended.finished_at is not None
    assert {digest for digest, fate in ended.blobs.items() if fate.gone_at} == blobs_of("odd") | blobs_of("plain")
    assert stored(store) == set()
    for key in (version.key, version.uploaded):
        assert not await place.cache.holds(key)
    (deleted,) = ended.versions
    assert deleted.digest == file_pair("odd").digest


@pytest.mark.parametrize("kept", ["odd", "plain"])
async def test_what_another_version_needs_stays(
    node: Node, place: Place, store: LocalStore, tmp_path: Path, kept: str
) -> None:
    version = await publish(node, store, tmp_path / "files", "odd", normal="plain")
    other = await publish(node, store, tmp_path / "files", kept, adapter="other")
    (await place.cache.lease(version.key)).release()
    (await place.cache.lease(version.uploaded)).release()
    deletion, _ = await place.deletions.delete_adapter("pricing", "prices", force=True, actor="key")
    await place.worker.advance()
    ended, _ = await place.report(deletion)
    assert ended.finished_at is not None
    assert stored(store) == blobs_of(kept)
    assert await place.cache.holds(other.key)
    assert ended.versions[0].shared


async def test_disk_copies_survive_a_restart_and_no_deletion(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "odd", normal="plain")
    for key in (version.key, version.uploaded):
        (await place.cache.lease(key)).release()
    again = place.restarted()
    await again.start()
    assert [await again.cache.holds(key) for key in (version.key, version.uploaded)] == [True, True]
    await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    later = place.restarted()
    await later.start()
    assert [await later.cache.holds(key) for key in (version.key, version.uploaded)] == [False, False]


async def test_garbage_collection_knows_both(
    node: Node, place: Place, store: LocalStore, clock: SettableClock, tmp_path: Path
) -> None:
    blobs = BlobService(node.database, store, "c" * 32, clock=clock)
    sweeper = UploadSweeper(node.database, store, LimitSettings(), clock=clock)
    gc = GcService(node.database, store, blobs, sweeper, clock=clock)
    await publish(node, store, tmp_path / "files", "odd", normal="plain")
    # The machine's clock is far ahead of the test's clock, so the files look new.
    clock.now = utc_now() + 2 * AGE
    findings = await gc.survey(min_age=AGE)
    assert (findings.orphans, findings.young, findings.dangling) == ((), 0, ())
    lost = file_pair("odd").weights_digest
    store.delete(lost)
    store.delete(file_pair("plain").config_digest)
    findings = await gc.survey(min_age=AGE)
    assert {one.digest for one in findings.dangling} == {lost, file_pair("plain").config_digest}
    assert {one.version for one in findings.dangling} == {"prices@1"}


async def test_a_quota_counts_each_stored_file_once(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    new = new_version("odd", node.clock(), normal="plain")
    both = sum(pair.config_bytes + pair.weights_bytes for pair in map(file_pair, ("odd", "plain")))
    assert new.stored_bytes == both
    half = new_version("odd", node.clock())
    assert half.stored_bytes == half.config_bytes + half.weights_bytes
    await publish(node, store, tmp_path / "files", "odd", normal="plain")
    await publish(node, store, tmp_path / "files", "other")
    _, used = await node.tenants.usage("pricing")
    assert used.bytes == both + sum((file_pair("other").config_bytes, file_pair("other").weights_bytes))


async def test_a_deletion_of_an_earlier_release_is_finished(
    node: Node, place: Place, store: LocalStore, tmp_path: Path
) -> None:
    version = await publish(node, store, tmp_path / "files", "plain")
    deletion, _ = await place.deletions.delete_version("pricing", "prices", 1, force=True, actor="key")
    old = {
        name: value for name, value in DeletedVersion(version.key, "prices@1").as_json().items() if name != "uploaded"
    }
    async with node.database.write() as connection:
        await connection.execute(update(deletions).where(deletions.c.id == deletion.id).values(versions=[old]))
    await place.worker.advance()
    ended, _ = await place.report(deletion)
    assert ended.finished_at is not None
    assert stored(store) == set()


async def test_a_version_of_0_1_0_is_served_and_deleted_as_before(empty_url: str, tmp_path: Path) -> None:
    """The rows are as release 0.1.0 wrote them. After the upgrade the same bytes have the same names."""
    store = LocalStore(tmp_path / "blobs")
    put(store, tmp_path / "files", "old")
    pair = file_pair("old")
    with migration_connection(empty_url) as connection:
        _at(connection, "0013")
        connection.execute(text(_TENANT))
        connection.execute(text(_ADAPTER))
        row = {
            "digest": pair.digest,
            "config": pair.config_digest,
            "weights": pair.weights_digest,
            "config_bytes": pair.config_bytes,
            "weights_bytes": pair.weights_bytes,
            "manifest": json.dumps({"r": 8, "lora_alpha": 16, "target_modules": ".*q_proj"}),
            "targets": json.dumps(["q_proj"]),
            "base": BASE_NAME,
            "base_digest": BASE_DIGEST,
        }
        connection.execute(text(_VERSION), row)
        connection.execute(text(_ALIAS))
        connection.execute(text(_TARGET))
    upgrade(empty_url)
    database = Database(empty_url)
    try:
        service = AdapterService(database, base_name=BASE_NAME, base_digest=BASE_DIGEST)
        version = await service.get_version("pricing", "prices", 1)
        assert version.uploaded == version.key
        assert (version.key.digest, version.warnings) == (pair.digest, ())
        resolved = await service.resolve(1, ModelName("prices"))
        assert resolved.key == version.key
        assert resolved.key.lora_name == f"1@{content_digest(pair.config_digest, pair.weights_digest)[:16]}"
        async with await DiskCache(tmp_path / "cache", store, 10**6).lease(resolved.key) as lease:
            found = sha256((lease.path / "adapter_model.safetensors").read_bytes()).hexdigest()
        assert found == pair.weights_digest
        async with database.write() as connection:
            known = await find_version_by_digest(connection, 1, pair.digest)
            assert known == version
            newer = await insert_version(connection, 1, new_version("odd", utc_now(), normal="plain"))
        assert (newer.number, newer.key.version_id) == (2, 2)
    finally:
        await database.close()


def test_the_migration_goes_back(empty_url: str) -> None:
    upgrade(empty_url)
    with migration_connection(empty_url) as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0013")
        connection.execute(text(_TENANT))
        connection.execute(text(_ADAPTER))
        connection.execute(text("SELECT digest, config_digest FROM versions"))


def _at(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


_TENANT = """
    INSERT INTO tenants (slug, name, disabled, salt, quota, weight, limits, created_at)
    VALUES ('pricing', 'Pricing', false, 's', '{}', 1, '{}', '2026-01-01 00:00:00')
"""
_ADAPTER = """
    INSERT INTO adapters (tenant_id, slug, limits, created_at) VALUES (1, 'prices', '{}', '2026-01-01 00:00:00')
"""
_VERSION = """
    INSERT INTO versions (adapter_id, number, state, digest, config_digest, weights_digest, config_bytes, weights_bytes,
                          rank, manifest, created_at, created_by, base_name, base_digest, alpha, target_modules,
                          parameters, weights_dtype, source, card, defaults)
    VALUES (1, 1, 'ready', :digest, :config, :weights, :config_bytes, :weights_bytes,
            8, :manifest, '2026-01-01 00:00:00', 'cli', :base, :base_digest, 16, :targets,
            1024, 'F32', '{}', '', '{}')
"""
_ALIAS = "INSERT INTO aliases (adapter_id, name, revision, updated_at) VALUES (1, 'default', 1, '2026-01-01 00:00:00')"
_TARGET = "INSERT INTO alias_targets (adapter_id, alias, version_id, weight) VALUES (1, 'default', 1, 100)"
