"""Blobs that the store has lost or damaged, on both databases and stores: reports and repairs."""

import logging
import uuid
from pathlib import Path

import pytest
from sqlalchemy import select

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound, DigestMismatch
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.database.tables import audit
from app.domain.adapters import Version
from app.services.operations.lost_bytes import LostBytes
from app.services.publishing.uploads.sessions import UploadService
from app.services.publishing.uploads.validation import Announced
from app.settings import LimitSettings
from tests.support.deleting import publish, put
from tests.support.registry import Node
from tests.support.s3server import s3_client

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return open_store(f"file://{tmp_path}/blobs", endpoint_url=None, region=None)
    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"tests-{uuid.uuid4().hex}"
    s3_client(endpoint).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/p", endpoint_url=endpoint, region="us-east-1")


@pytest.fixture
def cache(store: BlobStore, tmp_path: Path, node: Node) -> DiskCache:
    return DiskCache(tmp_path / "cache", store, 10_000, monotonic=node.clock.monotonic)


@pytest.fixture
def lost(node: Node, store: BlobStore, cache: DiskCache) -> LostBytes:
    return LostBytes(node.database, store, cache, clock=node.clock)


@pytest.fixture
async def version(node: Node, store: BlobStore, tmp_path: Path) -> Version:
    await node.tenants.create("pricing", actor="cli")
    return await publish(node, store, tmp_path / "files", "a")


async def reported(node: Node) -> list[tuple[str, str, str]]:
    async with node.database.read() as connection:
        statement = select(audit.c.action, audit.c.tenant, audit.c.subject).where(audit.c.action.like("version.bytes%"))
        return [tuple(row) for row in await connection.execute(statement)]


async def begin(node: Node, store: BlobStore, version: Version, adapter: str = "prices") -> bool:
    """Begin an upload of the version's files. Return whether the server says that it already has them."""
    uploads, key = UploadService(node.database, store, LimitSettings(), clock=node.clock), version.key
    files = {
        "adapter_config.json": Announced(key.config_bytes, key.config_digest),
        "adapter_model.safetensors": Announced(key.weights_bytes, key.weights_digest),
    }
    options = {"raw": {}, "admin": False, "uploaded_from": None}
    progress = await uploads.begin("pricing", adapter, files, options, part_bytes=None, actor="a-key")
    has = {file.stored for file in progress.session.files.values()}
    assert len(has) == 1
    return has.pop()


async def test_lost_bytes_are_asked_for_again(node: Node, store: BlobStore, version: Version) -> None:
    assert await begin(node, store, version)
    store.delete(version.key.config_digest)
    assert not await begin(node, store, version)


async def test_a_blob_of_another_size_counts_as_lost(
    node: Node, store: BlobStore, version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "size", lambda digest: 1)
    assert not await begin(node, store, version)


async def test_the_store_is_not_asked_about_another_adapters_bytes(
    node: Node, store: BlobStore, version: Version
) -> None:
    """The answer would otherwise reveal that another tenant has these bytes."""
    assert not await begin(node, store, version, adapter="other")


async def test_missing_bytes_are_reported_once_and_found_again(
    node: Node,
    store: BlobStore,
    cache: DiskCache,
    lost: LostBytes,
    version: Version,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.delete(version.key.weights_digest)
    with pytest.raises(BlobNotFound):
        await cache.lease(version.key)
    for _ in range(3):
        with caplog.at_level(logging.ERROR):
            await lost.maintain()
    assert lost.counts() == {"missing": 1, "damaged": 0}
    assert await reported(node) == [("version.bytes_missing", "pricing", "prices@1")]
    assert "Push the same files again" in caplog.text
    put(store, tmp_path / "files", "a")
    # During the pause no lease asks the store. Once the bytes are back, the pause is over.
    with pytest.raises(BlobNotFound):
        await cache.lease(version.key)
    await lost.maintain()
    assert lost.counts() == {"missing": 0, "damaged": 0}
    (await cache.lease(version.key)).release()


async def test_what_is_lost_again_and_again_is_reported_once_an_hour(
    node: Node, store: BlobStore, cache: DiskCache, lost: LostBytes, version: Version, tmp_path: Path
) -> None:
    for round_ in range(4):
        store.delete(version.key.weights_digest)
        with pytest.raises(BlobNotFound):
            await cache.lease(version.key)
        await lost.maintain()
        put(store, tmp_path / "files", "a")
        await lost.maintain()
        assert lost.counts()["missing"] == 0
        assert len(await reported(node)) == 1 + (round_ == 3)
        node.clock.advance(1500)
        await lost.maintain()


async def test_damaged_bytes_are_reported_until_they_are_fetched(
    node: Node, store: BlobStore, cache: DiskCache, lost: LostBytes, version: Version, tmp_path: Path
) -> None:
    fetch = store.fetch

    def spoilt(digest: str, destination: Path) -> None:
        fetch(digest, destination)
        destination.write_bytes(b"x" * destination.stat().st_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "fetch", spoilt)
        with pytest.raises(DigestMismatch):
            await cache.lease(version.key)
    await lost.maintain()
    assert lost.counts() == {"missing": 0, "damaged": 1}
    assert await reported(node) == [("version.bytes_damaged", "pricing", "prices@1")]
    node.clock.advance(60)
    (await cache.lease(version.key)).release()
    assert lost.counts() == {"missing": 0, "damaged": 0}


async def test_the_bytes_of_a_deleted_version_are_not_lost(
    node: Node, store: BlobStore, cache: DiskCache, lost: LostBytes, version: Version
) -> None:
    store.delete(version.key.weights_digest)
    with pytest.raises(BlobNotFound):
        await cache.lease(version.key)
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="key")
    await lost.maintain()
    assert (await reported(node), lost.counts()["missing"]) == ([], 0)


async def test_a_failed_report_is_made_up_for(
    node: Node, store: BlobStore, cache: DiskCache, lost: LostBytes, version: Version
) -> None:
    store.delete(version.key.weights_digest)
    with pytest.raises(BlobNotFound):
        await cache.lease(version.key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.services.operations.lost_bytes.audit.record", _fail)
        with pytest.raises(ConnectionError):
            await lost.maintain()
    await lost.maintain()
    assert len(await reported(node)) == 1


async def _fail(*_: object, **__: object) -> None:
    raise ConnectionError
