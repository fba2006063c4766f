"""Publishing and removal, on a real registry, store and disk cache."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from adapters.cache import DiskCache
from adapters.errors import AdapterRejected, InvalidName, StoreUnavailable
from adapters.stores.local import LocalStore
from app.base_model import open_base
from app.database.migrate import upgrade
from app.database.session import Database
from app.database.tables import audit
from app.database.urls import database_url
from app.errors import AdapterQuarantined, EngineUnavailable, NotFound
from app.services.adapters import AdapterService
from app.services.caller_cache import CallerCache
from app.services.publishing import PublishingService
from app.services.removal import RemovalService
from app.services.spool import SpooledFile, Upload
from app.services.tenants import TenantService
from app.settings import Settings
from tests.app.serving import MAX_RANK, NoEngine, PeftFiles, peft_files, save_base


class WatchedStore(LocalStore):
    """A local store that can be told to fail, or to wait in the middle of a deletion."""

    fails = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deleting, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def put(self, digest: str, source: Path) -> bool:
        if self.fails:
            raise StoreUnavailable("told to")
        return super().put(digest, source)

    def delete(self, digest: str) -> None:
        if self.fails:
            raise StoreUnavailable("told to")
        self.deleting.set()
        assert self.go_on.wait(30)
        super().delete(digest)


@dataclass(frozen=True)
class Bench:
    """The services under test and what is around them."""

    publishing: PublishingService
    removal: RemovalService
    adapters: AdapterService
    database: Database
    store: WatchedStore
    cache: DiskCache
    engine: NoEngine
    root: Path

    def upload(self, files: PeftFiles) -> Upload:
        folder = Path(self.root / hashlib.sha256(files.config + files.weights).hexdigest())
        folder.mkdir(exist_ok=True)
        return Upload(
            config=_spooled(folder / "adapter_config.json", files.config),
            weights=_spooled(folder / "adapter_model.safetensors", files.weights),
        )

    async def trail(self) -> list[tuple[str, str, object, object]]:
        async with self.database.read() as connection:
            rows = await connection.execute(
                select(audit.c.action, audit.c.subject, audit.c.before, audit.c.after)
                .where(audit.c.action.like("version.%"))
                .order_by(audit.c.id)
            )
            return [tuple(row) for row in rows]


def _spooled(path: Path, content: bytes) -> SpooledFile:
    path.write_bytes(content)
    return SpooledFile(path, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    base = str(save_base(tmp_path / "tiny-llama"))
    settings = Settings(home=tmp_path, base_model=base, engine={"max_lora_rank": MAX_RANK})
    upgrade(database_url(settings))
    database, store, engine = Database(database_url(settings)), WatchedStore(tmp_path / "blobs"), NoEngine()
    cache = DiskCache(tmp_path / "cache", store, 2**30)
    adapters, lock = AdapterService(database), asyncio.Lock()
    publishing = PublishingService(database, store, open_base(settings), settings, lock)
    removal = RemovalService(adapters, database, store, cache, engine, lock)
    for slug in ("pricing", "supply-chain"):
        await TenantService(database, CallerCache()).create(slug, actor="test")
    yield Bench(publishing, removal, adapters, database, store, cache, engine, tmp_path)
    await removal.close()
    await database.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[PeftFiles]:
    return [peft_files(tmp_path_factory.mktemp("peft"), seed=seed) for seed in range(2)]


async def test_versions_aliases_and_the_trail(bench: Bench, made: list[PeftFiles]) -> None:
    first = await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="a-key")
    again = await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="another-key")
    second = await bench.publishing.publish("pricing", "quotes", bench.upload(made[1]), actor="a-key")
    assert (first.created, again.created, second.created) == (True, False, True)
    assert again.version == first.version
    assert first.version.aliases == second.version.aliases == ("default",)
    assert (await bench.adapters.get_adapter("pricing", "quotes")).aliases == {"default": 2}
    assert [(action, subject, before) for action, subject, before, _ in await bench.trail()] == [
        ("version.publish", "quotes@1", {"default": None}),
        ("version.publish", "quotes@2", {"default": 1}),
    ]


async def test_tenants_share_bytes_but_not_versions(bench: Bench, made: list[PeftFiles]) -> None:
    mine = (await bench.publishing.publish("pricing", "a", bench.upload(made[0]), actor="k")).version
    theirs = (await bench.publishing.publish("supply-chain", "b", bench.upload(made[0]), actor="k")).version
    assert mine.key.version_id != theirs.key.version_id
    assert mine.key.digest == theirs.key.digest
    await bench.removal.delete_adapter("pricing", "a", actor="k")
    await bench.removal.settle()
    assert bench.store.size(theirs.key.weights_digest) == theirs.key.weights_bytes
    await bench.removal.delete_version("supply-chain", "b", 1, actor="k")
    await bench.removal.settle()
    assert bench.store.size(theirs.key.weights_digest) is None
    assert bench.store.size(theirs.key.config_digest) is None
    assert bench.engine.unloaded == [mine.key.version_id, theirs.key.version_id]


async def test_targets_are_checked(bench: Bench) -> None:
    await bench.publishing.check_target("pricing", "quotes")
    with pytest.raises(NotFound):
        await bench.publishing.check_target("absent", "quotes")
    for name in ("tiny-llama", "text", "A", "a@1"):
        with pytest.raises(InvalidName):
            await bench.publishing.check_target("pricing", name)


async def test_a_refused_upload_leaves_one_row_in_the_trail(bench: Bench, made: list[PeftFiles]) -> None:
    with pytest.raises(AdapterRejected) as caught:
        await bench.publishing.publish("pricing", "quotes", bench.upload(PeftFiles(b"{}", b"")), actor="k")
    ((action, subject, before, after),) = await bench.trail()
    assert (action, subject, before) == ("version.rejected", "quotes", None)
    assert after["reasons"] == [reason.code for reason in caught.value.reasons]
    with pytest.raises(NotFound):
        await bench.adapters.get_adapter("pricing", "quotes")


async def test_a_store_that_fails_publishes_nothing(bench: Bench, made: list[PeftFiles]) -> None:
    bench.store.fails = True
    with pytest.raises(StoreUnavailable):
        await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")
    with pytest.raises(NotFound):
        await bench.adapters.get_adapter("pricing", "quotes")
    bench.store.fails = False
    assert (await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")).created


async def test_quarantined_bytes_stay_out(bench: Bench, made: list[PeftFiles]) -> None:
    version = (await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")).version
    await bench.adapters.quarantine(version.key.version_id, "it did not load")
    with pytest.raises(AdapterQuarantined, match="quotes@1"):
        await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")


async def test_bytes_published_again_while_they_are_deleted_are_there(bench: Bench, made: list[PeftFiles]) -> None:
    await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")
    bench.store.go_on.clear()
    await bench.removal.delete_version("pricing", "quotes", 1, actor="k")
    assert await asyncio.to_thread(bench.store.deleting.wait, 30)
    publishing = asyncio.create_task(bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k"))
    bench.store.go_on.set()
    version = (await publishing).version
    await bench.removal.settle()
    assert version.number == 2
    assert bench.store.size(version.key.config_digest) == version.key.config_bytes
    assert bench.store.size(version.key.weights_digest) == version.key.weights_bytes


async def test_two_uploads_of_the_same_bytes_at_once_make_one_version(bench: Bench, made: list[PeftFiles]) -> None:
    upload = bench.upload(made[0])
    both = await asyncio.gather(*(bench.publishing.publish("pricing", "quotes", upload, actor="k") for _ in range(2)))
    assert sorted(published.created for published in both) == [False, True]
    assert both[0].version == both[1].version


async def test_a_deletion_forgets_the_disk_copy(bench: Bench, made: list[PeftFiles]) -> None:
    version = (await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")).version
    async with await bench.cache.lease(version.key) as lease:
        await bench.removal.delete_version("pricing", "quotes", 1, actor="k")
        await bench.removal.settle()
        assert (lease.path / "adapter_model.safetensors").read_bytes() == made[0].weights
    assert bench.cache.used_bytes == 0


async def test_a_dead_engine_keeps_nothing_from_being_cleaned_up(
    bench: Bench, made: list[PeftFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unload(version_id: int) -> None:
        raise EngineUnavailable("the engine is being started again")

    monkeypatch.setattr(bench.engine, "unload", unload)
    version = (await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")).version
    await bench.removal.delete_version("pricing", "quotes", 1, actor="k")
    await bench.removal.settle()
    assert bench.store.size(version.key.weights_digest) is None


async def test_what_cannot_be_cleaned_up_is_logged(
    bench: Bench, made: list[PeftFiles], caplog: pytest.LogCaptureFixture
) -> None:
    await bench.publishing.publish("pricing", "quotes", bench.upload(made[0]), actor="k")
    bench.store.fails = True
    await bench.removal.delete_version("pricing", "quotes", 1, actor="k")
    await bench.removal.settle()
    assert "left something behind" in caplog.text
    with pytest.raises(NotFound):
        await bench.adapters.get_version("pricing", "quotes", 1)
