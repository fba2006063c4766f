"""Publishing and removal, on a real registry, store and disk cache."""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from adapters.cache import DiskCache
from adapters.errors import AdapterRejected, BlobNotFound, InvalidName, StoreUnavailable
from adapters.stores.local import LocalStore
from app.database.session import Database
from app.database.tables import audit
from app.database.urls import database_url
from app.domain.errors import AdapterQuarantined, NotFound
from app.engine.port import SmokeResult
from app.served_base import open_base
from app.services.access.caller_cache import CallerCache
from app.services.access.tenants import TenantService
from app.services.catalog.adapters import AdapterService
from app.services.catalog.options import PublishOptions
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.deletions import DeletionService
from app.services.deletion.gc import GcService
from app.services.deletion.worker import DeletionWorker
from app.services.operations.nodes import NodeService
from app.services.operations.store_owner import StoreOwner
from app.services.prompts.chat import ChatPrompts
from app.services.publishing.blobs import BlobService
from app.services.publishing.publishing import Published, PublishingService
from app.services.publishing.refusals import RefusalService
from app.services.publishing.smoke_tests import SmokeTestService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import LimitSettings, Settings
from app.support.spool import SpooledFile, Upload
from tests.support.migrated import create_registry
from tests.support.odd_adapters import ODD
from tests.support.serving import MAX_RANK, NoEngine, PeftFiles, peft_files, save_base

NODE = "0" * 32
LIMITS = LimitSettings()


class WatchedStore(LocalStore):
    """Local store that fails, or pauses in the middle of a deletion, on request."""

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
    """The services under test and their collaborators."""

    publishing: PublishingService
    deletions: DeletionService
    worker: DeletionWorker
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

    async def publish(self, adapter: str, upload: Upload, tenant: str = "pricing") -> Published:
        return await self.publishing.publish(tenant, adapter, upload, PublishOptions(), actor="a-key")

    async def settle(self) -> None:
        """Advance deletions once, as the server does every second."""
        await self.worker.advance()

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
    folder = save_base(tmp_path / "tiny-llama")
    settings = Settings(home=tmp_path, base_model=str(folder), engine={"max_lora_rank": MAX_RANK})
    create_registry(tmp_path / "tenora.db")
    database, store, engine = Database(database_url(settings)), WatchedStore(tmp_path / "blobs"), NoEngine()
    cache = DiskCache(tmp_path / "cache", store, 2**30)
    base, in_flight = open_base(settings), InFlightLookups()
    adapters = AdapterService(database, base_name=base.name, base_digest=base.digest)
    blobs = BlobService(database, store, NODE)
    worker = DeletionWorker(database, engine, cache, blobs, in_flight, NODE)
    nodes = NodeService(database, NODE, "here")
    await nodes.register()
    await StoreOwner(database, store).ensure()
    smoke_tests = SmokeTestService(database, engine, in_flight, lambda: None)
    prompts = ChatPrompts(settings, {}, None)
    publishing = PublishingService(
        database, store, base, settings, smoke_tests, prompts, blobs, RefusalService(database)
    )
    for slug in ("pricing", "supply-chain"):
        await TenantService(database, CallerCache()).create(slug, actor="test")
    deletions = DeletionService(database, lambda: None)
    yield Bench(publishing, deletions, worker, adapters, database, store, cache, engine, tmp_path)
    await smoke_tests.close()
    await worker.close()
    await database.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[PeftFiles]:
    return [peft_files(tmp_path_factory.mktemp("peft"), seed=seed) for seed in range(2)]


async def test_versions_aliases_and_the_trail(bench: Bench, made: list[PeftFiles]) -> None:
    first = await bench.publish("quotes", bench.upload(made[0]))
    again = await bench.publishing.publish(
        "pricing", "quotes", bench.upload(made[0]), PublishOptions(), actor="another-key"
    )
    second = await bench.publish("quotes", bench.upload(made[1]))
    assert (first.created, again.created, second.created) == (True, False, True)
    assert again.version == first.version
    assert first.version.aliases == second.version.aliases == ("default",)
    assert (await bench.adapters.get_adapter("pricing", "quotes")).aliases == {"default": {2: 100}}
    assert [(action, subject, before) for action, subject, before, _ in await bench.trail()] == [
        ("version.publish", "quotes@1", None),
        ("version.ready", "quotes@1", {"state": "validating"}),
        ("version.publish", "quotes@2", None),
        ("version.ready", "quotes@2", {"state": "validating"}),
    ]


async def test_tenants_share_bytes_but_not_versions(bench: Bench, made: list[PeftFiles]) -> None:
    mine = (await bench.publish("a", bench.upload(made[0]))).version
    theirs = (await bench.publish("b", bench.upload(made[0]), tenant="supply-chain")).version
    assert mine.key.version_id != theirs.key.version_id
    assert mine.key.digest == theirs.key.digest
    await bench.deletions.delete_adapter("pricing", "a", force=True, actor="k")
    await bench.settle()
    assert bench.store.size(theirs.key.weights_digest) == theirs.key.weights_bytes
    await bench.deletions.delete_version("supply-chain", "b", 1, force=True, actor="k")
    await bench.settle()
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
        await bench.publish("quotes", bench.upload(PeftFiles(b"{}", b"")))
    ((action, subject, before, after),) = await bench.trail()
    assert (action, subject, before) == ("version.rejected", "quotes", None)
    assert after["reasons"] == [reason.code for reason in caught.value.reasons]
    with pytest.raises(NotFound):
        await bench.adapters.get_adapter("pricing", "quotes")


async def test_a_store_that_fails_publishes_nothing(bench: Bench, made: list[PeftFiles]) -> None:
    bench.store.fails = True
    with pytest.raises(StoreUnavailable):
        await bench.publish("quotes", bench.upload(made[0]))
    with pytest.raises(NotFound):
        await bench.adapters.get_adapter("pricing", "quotes")
    bench.store.fails = False
    assert (await bench.publish("quotes", bench.upload(made[0]))).created


async def test_quarantined_bytes_stay_out(bench: Bench, made: list[PeftFiles]) -> None:
    version = (await bench.publish("quotes", bench.upload(made[0]))).version
    await bench.adapters.quarantine(version.key.version_id, "it did not load")
    with pytest.raises(AdapterQuarantined, match="quotes@1"):
        await bench.publish("quotes", bench.upload(made[0]))


async def test_bytes_published_again_while_they_are_deleted_are_there(bench: Bench, made: list[PeftFiles]) -> None:
    await bench.publish("quotes", bench.upload(made[0]))
    bench.store.go_on.clear()
    await bench.deletions.delete_version("pricing", "quotes", 1, force=True, actor="k")
    deleting = asyncio.create_task(bench.settle())
    assert await asyncio.to_thread(bench.store.deleting.wait, 30)
    publishing = asyncio.create_task(bench.publish("quotes", bench.upload(made[0])))
    await until_registered(bench, "quotes", 2)
    assert not publishing.done()
    bench.store.go_on.set()
    version = (await publishing).version
    await deleting
    assert version.number == 2
    assert bench.store.size(version.key.config_digest) == version.key.config_bytes
    assert bench.store.size(version.key.weights_digest) == version.key.weights_bytes


async def test_two_uploads_of_the_same_bytes_at_once_make_one_version(bench: Bench, made: list[PeftFiles]) -> None:
    upload = bench.upload(made[0])
    both = await asyncio.gather(*(bench.publish("quotes", upload) for _ in range(2)))
    assert sorted(published.created for published in both) == [False, True]
    assert both[0].version == both[1].version


async def test_a_deletion_forgets_the_disk_copy_after_its_last_reader(bench: Bench, made: list[PeftFiles]) -> None:
    version = (await bench.publish("quotes", bench.upload(made[0]))).version
    async with await bench.cache.lease(version.key) as lease:
        deletion, _ = await bench.deletions.delete_version("pricing", "quotes", 1, force=True, actor="k")
        await bench.settle()
        assert (lease.path / "adapter_model.safetensors").read_bytes() == made[0].weights
        (waiting,) = (await bench.deletions.get(deletion.id, tenant="pricing"))[1]
        assert waiting.engine_gone_at is not None
        assert waiting.disk_gone_at is None
        assert bench.store.size(version.key.weights_digest) == version.key.weights_bytes
    await bench.settle()
    assert not await bench.cache.holds(version.key)
    assert (await bench.deletions.get(deletion.id, tenant="pricing"))[0].finished_at is not None
    assert bench.store.size(version.key.weights_digest) is None


async def test_what_cannot_be_cleaned_up_is_told_once_and_tried_again(
    bench: Bench, made: list[PeftFiles], caplog: pytest.LogCaptureFixture
) -> None:
    version = (await bench.publish("quotes", bench.upload(made[0]))).version
    bench.store.fails = True
    deletion, _ = await bench.deletions.delete_version("pricing", "quotes", 1, force=True, actor="k")
    for _ in range(3):
        await bench.settle()
    assert caplog.text.count(f"Deletion {deletion.id} of quotes@1 waits: told to") == 1
    with pytest.raises(NotFound):
        await bench.adapters.get_version("pricing", "quotes", 1)
    bench.store.fails = False
    await bench.settle()
    assert (await bench.deletions.get(deletion.id, tenant="pricing"))[0].finished_at is not None
    assert bench.store.size(version.key.weights_digest) is None


async def until_registered(bench: Bench, adapter: str, number: int) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(NotFound):
                await bench.adapters.get_version("pricing", adapter, number)
                return
            await asyncio.sleep(0.01)


async def test_garbage_collection_races_a_publication_of_its_bytes(bench: Bench, made: list[PeftFiles]) -> None:
    """The bytes are already stored as garbage. The uploader reuses them before the collector sees the version row."""
    upload = bench.upload(made[0])
    for file in (upload.config, upload.weights):
        bench.store.put(file.digest, file.path)
    blobs = BlobService(bench.database, bench.store, "c" * 32)
    collector = GcService(bench.database, bench.store, blobs, UploadSweeper(bench.database, bench.store, LIMITS))
    findings = await collector.survey(min_age=timedelta(0))
    assert len(findings.orphans) == 2
    bench.store.go_on.clear()
    collecting = asyncio.create_task(collector.collect(findings))
    assert await asyncio.to_thread(bench.store.deleting.wait, 30)
    publishing = asyncio.create_task(bench.publish("quotes", upload))
    await until_registered(bench, "quotes", 1)
    assert not publishing.done()
    bench.store.go_on.set()
    version = (await publishing).version
    await collecting
    assert bench.store.size(version.key.config_digest) == version.key.config_bytes
    assert bench.store.size(version.key.weights_digest) == version.key.weights_bytes
    assert (await collector.survey(min_age=timedelta(0))).dangling == ()


async def test_a_version_without_bytes_is_rejected(bench: Bench, made: list[PeftFiles]) -> None:
    """State after a server dies between writing a version row and checking its bytes again."""
    bench.engine.smoke_result = BlobNotFound("the store holds no such bytes")
    with pytest.raises(AdapterRejected) as caught:
        await bench.publish("quotes", bench.upload(made[0]))
    assert [reason.code for reason in caught.value.reasons] == ["bytes_missing"]
    bench.engine.smoke_result = SmokeResult(finite=True, has_effect=True)
    assert (await bench.publish("quotes", bench.upload(made[0]))).version.number == 2


def _odd(folder: Path, made: PeftFiles, name: str) -> PeftFiles:
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(made.config)
    (folder / "adapter_model.safetensors").write_bytes(made.weights)
    ODD[name].change(folder)
    return PeftFiles(*((folder / file).read_bytes() for file in ("adapter_config.json", "adapter_model.safetensors")))


@pytest.mark.parametrize(
    ("name", "blobs"), [("no prefix, and expressions", 4), ("exclude_modules as text", 3), ("fan_in_fan_out", 2)]
)
async def test_a_normal_form_is_stored_only_if_it_differs(
    bench: Bench, made: list[PeftFiles], tmp_path: Path, name: str, blobs: int
) -> None:
    files = _odd(tmp_path / "odd", made[0], name)
    upload = bench.upload(files)
    published = await bench.publish("quotes", upload)
    version = published.version
    assert (version.uploaded.config_digest, version.uploaded.weights_digest) == (
        upload.config.digest,
        upload.weights.digest,
    )
    stored = {blob.digest: blob.size for blob in bench.store.list_blobs()}
    assert len(stored) == blobs
    for key in (version.key, version.uploaded):
        assert stored[key.config_digest] == key.config_bytes
        assert stored[key.weights_digest] == key.weights_bytes
    again = await bench.publish("quotes", bench.upload(files))
    assert (again.created, again.version) == (False, version)
    assert len(list(bench.store.list_blobs())) == blobs
    assert not [path for path in upload.folder.iterdir() if path.is_file() and path not in _files(upload)]
    await bench.deletions.delete_version("pricing", "quotes", 1, force=True, actor="k")
    await bench.settle()
    assert list(bench.store.list_blobs()) == []


def _files(upload: Upload) -> set[Path]:
    return {upload.config.path, upload.weights.path}


async def test_a_warning_is_kept_with_the_version(bench: Bench, made: list[PeftFiles], tmp_path: Path) -> None:
    files = _odd(tmp_path / "odd", made[0], "a target without tensors")
    published = await bench.publish("quotes", bench.upload(files))
    (warning,) = published.version.warnings
    assert (warning.code, warning.found) == ("target_without_tensors", "'layers.9999.mlp.up_proj'")
    assert (await bench.adapters.get_version("pricing", "quotes", 1)).warnings == (warning,)


@pytest.mark.slow
async def test_a_slow_expression_is_refused_and_others_validated(
    bench: Bench, made: list[PeftFiles], tmp_path: Path
) -> None:
    config = json.loads(made[0].config) | {"alpha_pattern": {"(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*x": 4}}
    slow = PeftFiles(json.dumps(config).encode(), made[0].weights)
    first, second, third = await asyncio.gather(
        bench.publish("slow", bench.upload(slow)),
        bench.publish("quotes", bench.upload(made[0]), tenant="supply-chain"),
        bench.publish("quotes", bench.upload(made[1]), tenant="supply-chain"),
        return_exceptions=True,
    )
    assert isinstance(first, AdapterRejected)
    assert {reason.code for reason in first.reasons} == {"unsafe_pattern"}
    assert isinstance(second, Published)
    assert isinstance(third, Published)
