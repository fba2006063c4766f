"""Store ownership: both databases and both stores, with two registries on one prefix."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from adapters.errors import ForeignStore
from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.database import installation
from app.database.deletions import insert_deletion
from app.database.session import Database
from app.database.tables import audit
from app.domain.deletions import BlobFate
from app.services.deletion.gc import GcService
from app.services.operations.store_owner import REGISTRY_ID, StoreOwner
from app.services.publishing.blobs import BlobService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import LimitSettings
from tests.support.deleting import publish, put
from tests.support.migrated import create_registry
from tests.support.registry import Node, SettableClock
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
async def stranger(clock: SettableClock, tmp_path: Path) -> AsyncIterator[Node]:
    """Process on another registry."""
    create_registry(tmp_path / "stranger.db")
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'stranger.db'}")
    yield Node(database, clock)
    await database.close()


def owner(node: Node, store: BlobStore) -> StoreOwner:
    return StoreOwner(node.database, store, clock=node.clock)


async def registry_id(node: Node) -> str | None:
    async with node.database.read() as connection:
        return await installation.read(connection, REGISTRY_ID)


def collector(node: Node, store: BlobStore) -> GcService:
    blobs = BlobService(node.database, store, "c" * 32, clock=node.clock)
    sweeper = UploadSweeper(node.database, store, LimitSettings(), clock=node.clock)
    return GcService(node.database, store, blobs, sweeper, clock=node.clock)


async def test_an_empty_store_is_claimed_once(node: Node, other_node: Node, store: BlobStore) -> None:
    assert store.owner() is None
    both = [owner(one, store) for one in (node, other_node)]
    # As when several servers of one registry start concurrently.
    await asyncio.gather(*(one.ensure() for one in both * 4))
    assert store.owner() == await registry_id(node)


async def test_one_of_two_registries_gets_a_store(node: Node, stranger: Node, store: BlobStore) -> None:
    outcomes = await asyncio.gather(*(owner(one, store).ensure() for one in (node, stranger)), return_exceptions=True)
    [refused] = [outcome for outcome in outcomes if outcome is not None]
    assert isinstance(refused, ForeignStore)
    assert "tenora server store adopt" in str(refused)
    assert store.owner() in {await registry_id(node), await registry_id(stranger)}


async def test_an_unowned_store_is_claimed_by_its_registry(
    node: Node, stranger: Node, store: BlobStore, tmp_path: Path
) -> None:
    await node.tenants.create("pricing", actor="cli")
    await publish(node, store, tmp_path / "files", "a")
    with pytest.raises(ForeignStore, match="blobs that this registry does not know"):
        await owner(stranger, store).ensure()
    assert store.owner() is None
    await owner(node, store).ensure()
    assert store.owner() == await registry_id(node)
    with pytest.raises(ForeignStore, match="belongs to registry"):
        await owner(stranger, store).ensure()


@pytest.mark.parametrize("claimed", [True, False])
async def test_nothing_of_another_registry_is_removed(
    node: Node, stranger: Node, store: BlobStore, tmp_path: Path, claimed: bool
) -> None:
    await node.tenants.create("pricing", actor="cli")
    version = await publish(node, store, tmp_path / "files", "a")
    staged = store.staging.begin("a" * 32, "adapter_model.safetensors")
    if claimed:
        await owner(node, store).ensure()
    stranger.clock.advance(timedelta(days=400).total_seconds())
    gc = collector(stranger, store)
    with pytest.raises(ForeignStore):
        await gc.survey(min_age=timedelta(0))
    # Background work of a server: a deletion of the same bytes, and the sweep of abandoned uploads.
    async with stranger.database.write() as connection:
        fates = dict.fromkeys((version.key.config_digest, version.key.weights_digest), BlobFate())
        identity = await insert_deletion(
            connection, [], tenant="", subject="gc", at=stranger.clock(), by="cli", blobs=fates
        )
    with pytest.raises(ForeignStore):
        await BlobService(stranger.database, store, "d" * 32, clock=stranger.clock).remove(identity)
    with pytest.raises(ForeignStore):
        await UploadSweeper(stranger.database, store, LimitSettings(), clock=stranger.clock).sweep()
    assert store.size(version.key.config_digest)
    assert store.size(version.key.weights_digest)
    assert store.staging.parts(staged) == {}


async def test_a_store_can_be_adopted(node: Node, stranger: Node, store: BlobStore, tmp_path: Path) -> None:
    put(store, tmp_path / "files", "a")
    with pytest.raises(ForeignStore):
        await owner(node, store).ensure()
    mine = await registry_id(node)
    assert await owner(node, store).other() is None
    assert await owner(node, store).adopt(actor="cli") == (None, mine)
    await owner(node, store).ensure()
    # As a registry does after a restore without its id.
    assert await owner(stranger, store).other() == mine
    theirs = await registry_id(stranger)
    assert await owner(stranger, store).adopt(actor="cli") == (mine, theirs)
    await owner(stranger, store).ensure()
    with pytest.raises(ForeignStore):
        await owner(node, store).ensure()
    assert await owner(stranger, store).adopt(actor="cli") == (theirs, theirs)
    async with stranger.database.read() as connection:
        rows = (await connection.execute(select(audit.c.action, audit.c.before, audit.c.after))).all()
    assert [tuple(row) for row in rows] == [("store.adopt", {"registry": mine}, {"registry": theirs})]


async def test_an_owner_that_nobody_wrote_like_this_is_another_one(
    node: Node, store: BlobStore, tmp_path: Path
) -> None:
    store.take_over("nonsense \x00\x1b[31m" * 40)
    with pytest.raises(ForeignStore) as caught:
        await owner(node, store).ensure()
    assert "\x1b" not in str(caught.value)
    await owner(node, store).adopt(actor="cli")
    await owner(node, store).ensure()
