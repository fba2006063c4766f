"""Files on both databases and both stores: two nodes, crashes, expiry, quotas, garbage collection."""

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update

from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.database import deletions, file_uploads, files
from app.database.tables import audit, batch_chunks, batches, file_parts
from app.database.tables import files as file_rows
from app.domain.batches import BatchState
from app.domain.deletions import BlobFate
from app.domain.errors import Conflict, FileLost, InvalidRequest, NotFound, QuotaExceeded, RegistryUnavailable
from app.domain.files import FileUploadState, Purpose, StoredFile
from app.services.deletion.gc import GcService
from app.services.files.files import FileService
from app.services.files.sweeper import FileSweeper
from app.services.files.uploads import FileUploadService
from app.services.publishing.blobs import BlobService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import BatchSettings, LimitSettings
from app.support.spool import Spool
from tests.support.deleting import FIRST, SECOND, Place
from tests.support.registry import Node, SettableClock
from tests.support.s3server import s3_client

pytest_plugins = ("tests.support.registry_fixtures",)

TENANT, OTHER = "pricing", "logistics"
DAY_S = 24 * 3600
SETTINGS = BatchSettings(file_bytes=100_000, tenant_bytes=200_000, tenant_files=5, local_bytes=200_000)


class Desk:
    """File services of one node."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        folder.mkdir(exist_ok=True)
        spool = Spool(folder / "spool", places=4, patience_s=10)
        spool.open()
        requested = lambda: None  # noqa: E731 - tests advance the worker themselves
        database, contents, clock = place.database, place.contents, place.clock
        self.files = FileService(database, contents, SETTINGS, requested, clock=clock)
        self.uploads = FileUploadService(database, contents, spool, SETTINGS, LimitSettings(), requested, clock=clock)
        self.sweeper = FileSweeper(database, clock=clock)

    def write(self, content: bytes) -> Path:
        path = self.folder / uuid.uuid4().hex
        path.write_bytes(content)
        return path

    async def create(self, content: bytes, *, lifetime_s: int = DAY_S, tenant: str = TENANT) -> StoredFile:
        return await self.files.create(
            tenant,
            self.write(content),
            purpose=Purpose.BATCH,
            filename="in.jsonl",
            lifetime_s=lifetime_s,
            actor="key",
        )

    async def begin(self, size: int) -> str:
        upload = await self.uploads.create(
            TENANT,
            size=size,
            filename="in.jsonl",
            mime_type="application/jsonl",
            purpose=Purpose.BATCH,
            lifetime_s=DAY_S,
            actor="key",
        )
        return upload.id

    async def part(self, upload_id: str, content: bytes) -> str:
        return (await self.uploads.add_part(TENANT, upload_id, self.write(content))).id

    async def complete(self, upload_id: str, *part_ids: str) -> StoredFile:
        done = await self.uploads.complete(TENANT, upload_id, part_ids, md5=None, actor="key")
        assert done.file is not None
        return done.file

    async def read(self, file: StoredFile) -> bytes:
        async with self.files.open(TENANT, file.id) as opened:
            return await asyncio.to_thread(opened.path.read_bytes)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return open_store(f"file://{tmp_path}/blobs", endpoint_url=None, region=None)
    endpoint, bucket = request.getfixturevalue("s3_endpoint"), f"tests-{uuid.uuid4().hex}"
    s3_client(endpoint).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/prefix", endpoint_url=endpoint, region="us-east-1")


@pytest.fixture
async def desk(node: Node, store: BlobStore, clock: SettableClock, tmp_path: Path) -> Desk:
    # Stores date their blobs by the machine's clock.
    clock.now = datetime.now(UTC)
    for tenant in (TENANT, OTHER):
        await node.tenants.create(tenant, actor="cli")
    place = Place(FIRST, tmp_path / "first", node.database, store, clock)
    await place.start()
    return Desk(place, tmp_path / "sources")


@pytest.fixture
async def other(desk: Desk, other_node: Node, store: BlobStore, clock: SettableClock, tmp_path: Path) -> Desk:
    place = Place(SECOND, tmp_path / "second", other_node.database, store, clock)
    await place.start()
    return Desk(place, tmp_path / "other-sources")


@pytest.fixture
def gc(desk: Desk) -> GcService:
    place = desk.place
    blobs = BlobService(place.database, place.store, "c" * 32, clock=place.clock)
    sweeper = UploadSweeper(place.database, place.store, LimitSettings(), clock=place.clock)
    return GcService(place.database, place.store, blobs, sweeper, clock=place.clock)


def stored(store: BlobStore) -> set[str]:
    return {blob.digest for blob in store.list_blobs()}


def copies(place: Place) -> int:
    return len(list((place.home / "files" / "copies").iterdir()))


async def collect(gc: GcService) -> set[str]:
    """Collect what is unused now, whatever its age. Returns the removed blobs."""
    fates = await gc.collect(await gc.survey(min_age=timedelta(seconds=-10)))
    return {digest for digest, fate in fates.items() if fate.gone_at}


async def finished(place: Place, identity: str) -> bool:
    async with place.database.read() as connection:
        deletion = await deletions.find_deletion(connection, identity)
    assert deletion is not None
    return deletion.finished_at is not None


async def batch(desk: Desk, file: StoredFile, state: BatchState = BatchState.IN_PROGRESS) -> str:
    """Insert the row of a batch that reads a file."""
    identity, now = f"batch_{uuid.uuid4().hex[:16]}", desk.place.clock()
    async with desk.place.database.write() as connection:
        await connection.execute(
            insert(batches).values(
                id=identity,
                tenant_id=file.tenant_id,
                state=state,
                endpoint="/v1/completions",
                input_file_id=file.id,
                completion_window="24h",
                options={},
                output_lifetime_s=DAY_S,
                created_at=now,
                created_by="key",
                expires_at=now + timedelta(days=1),
            )
        )
    return identity


async def set_state(desk: Desk, batch_id: str, state: BatchState) -> None:
    async with desk.place.database.write() as connection:
        await connection.execute(update(batches).where(batches.c.id == batch_id).values(state=state))


async def test_a_file_is_read_and_deleted_on_two_nodes(desk: Desk, other: Desk, store: BlobStore) -> None:
    file = await desk.create(b"content" * 1000)
    for one in (desk, other):
        assert await one.read(file) == b"content" * 1000
        assert copies(one.place) == 1
    deletion = await desk.files.delete(TENANT, file.id, actor="key")
    for one in (desk, other):
        with pytest.raises(NotFound):
            await one.files.get(TENANT, file.id)
    await desk.place.worker.advance()
    assert (copies(desk.place), copies(other.place), stored(store)) == (0, 1, {file.digest})
    await other.place.worker.advance()
    assert (copies(other.place), stored(store)) == (0, set())
    assert await finished(desk.place, deletion)
    report, views = await desk.place.deletions.get(deletion, tenant=TENANT)
    assert (report.subject, report.file_id) == (file.id, file.id)
    assert {view.node for view in views if view.disk_gone_at} == {FIRST, SECOND}


async def test_a_download_in_progress_ends_before_the_deletion(desk: Desk, other: Desk, store: BlobStore) -> None:
    file = await desk.create(b"content")
    async with other.files.open(TENANT, file.id) as opened:
        await desk.files.delete(TENANT, file.id, actor="key")
        for one in (desk, other):
            await one.place.worker.advance()
        assert await asyncio.to_thread(opened.path.read_bytes) == b"content"
        assert stored(store) == {file.digest}
    for one in (other, desk):
        await one.place.worker.advance()
    assert (copies(other.place), stored(store)) == (0, set())


async def test_no_copy_is_made_of_a_file_that_was_deleted_in_between(desk: Desk) -> None:
    file = await desk.create(b"content")
    await desk.files.delete(TENANT, file.id, actor="key")
    with pytest.raises(NotFound):
        async with desk.place.contents.open(file):
            pass
    assert copies(desk.place) == 0


async def test_a_restarted_node_finishes_a_deletion(desk: Desk, store: BlobStore, tmp_path: Path) -> None:
    file = await desk.create(b"content")
    await desk.read(file)
    deletion = await desk.files.delete(TENANT, file.id, actor="key")
    assert copies(desk.place) == 1
    restarted = desk.place.restarted()
    await restarted.start()
    assert copies(restarted) == 0
    await restarted.worker.advance()
    assert await finished(restarted, deletion)
    assert stored(store) == set()


async def test_an_absent_node_catches_up(desk: Desk, other: Desk, store: BlobStore) -> None:
    file = await desk.create(b"content")
    await other.read(file)
    other.place.clock.advance(60)
    await desk.place.nodes.beat()
    deletion = await desk.files.delete(TENANT, file.id, actor="key")
    await desk.place.worker.advance()
    assert await finished(desk.place, deletion)
    _, views = await desk.place.deletions.get(deletion, tenant=None)
    assert {view.node: view.disk_gone_at is not None for view in views} == {FIRST: True, SECOND: False}
    await other.place.nodes.beat()
    await other.place.worker.advance()
    _, views = await desk.place.deletions.get(deletion, tenant=None)
    assert all(view.disk_gone_at for view in views)
    assert copies(other.place) == 0


async def test_a_crash_between_blob_and_row_leaves_garbage_only(
    desk: Desk, gc: GcService, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        raise RegistryUnavailable("The database is gone.")

    with monkeypatch.context() as patch:
        patch.setattr(files, "insert_file", crash)
        with pytest.raises(RegistryUnavailable):
            await desk.create(b"content")
    (blob,) = stored(store)
    assert (await desk.files.list_files(TENANT, purpose=None, after=None, ascending=True, limit=9)).files == ()
    assert (await gc.survey(min_age=timedelta(hours=1))).orphans == ()
    assert await collect(gc) == {blob}
    assert list((desk.place.home / "files" / "scratch").iterdir()) == []


async def test_a_refused_file_leaves_no_blob(desk: Desk, store: BlobStore) -> None:
    for _ in range(2):
        await desk.create(b"x" * 90_000)
    before = stored(store)
    with pytest.raises(QuotaExceeded):
        await desk.create(b"x" * 30_000)
    assert stored(store) == before


async def test_concurrent_files_do_not_pass_the_quota_together(desk: Desk, other: Desk) -> None:
    results = await asyncio.gather(
        *(one.create(b"x" * 60_000) for one in (desk, other) for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(result, StoredFile) for result in results) == 3
    assert sum(isinstance(result, QuotaExceeded) for result in results) == 3


async def test_open_uploads_count_towards_the_quota(desk: Desk) -> None:
    upload = await desk.begin(90_000)
    await desk.create(b"x" * 90_000)
    with pytest.raises(QuotaExceeded):
        await desk.create(b"x" * 30_000)
    await desk.uploads.cancel(TENANT, upload, actor="key")
    await desk.create(b"x" * 30_000)


async def test_a_collection_between_blob_and_row_is_made_good(desk: Desk, gc: GcService, store: BlobStore) -> None:
    async with desk.place.contents.stored(
        desk.write(b"content"),
        tenant_id=(await desk.create(b"x")).tenant_id,
        purpose=Purpose.BATCH,
        filename="in.jsonl",
        created_by="key",
        expires_at=desk.place.clock() + timedelta(days=1),
    ) as file:
        assert await collect(gc) == {file.digest}
        async with desk.place.database.write() as connection:
            await files.insert_file(connection, file)
    assert await desk.read(file) == b"content"


async def test_blobs_are_kept_while_they_are_needed(desk: Desk, gc: GcService, store: BlobStore) -> None:
    contents = desk.place.contents
    file, upload = await desk.create(b"content"), await desk.begin(4)
    part = await desk.part(upload, b"part")
    reader = await batch(desk, file)
    async with contents.stored_segment(['{"line": 1}', '{"line": 2}']) as segment:
        pass
    async with desk.place.database.write() as connection:
        row = {"batch_id": reader, "number": 0, "model": "base", "lines": [], "state": "done", "segment": segment}
        await connection.execute(insert(batch_chunks).values(row))
        part_blob = await connection.scalar(select(file_parts.c.digest).where(file_parts.c.id == part))
    assert stored(store) == {file.digest, part_blob, segment}
    assert await collect(gc) == set()
    findings = await gc.survey(min_age=timedelta(seconds=-10))
    assert (findings.orphans, findings.dangling) == ((), ())
    # A deletion that names a needed blob keeps it, too.
    for blob in (file.digest, part_blob, segment):
        assert blob is not None
        assert not await removed(desk, blob)
    store.delete(segment)
    assert [one.version for one in (await gc.survey(min_age=timedelta(0))).dangling] == [reader]
    async with contents.stored_segment(["{}"]) as segment:
        pass
    assert await collect(gc) == {segment}
    async with desk.place.database.write() as connection:
        await connection.execute(delete(batch_chunks))
        await connection.execute(delete(file_parts))
    assert await collect(gc) == {part_blob}
    assert await desk.read(file) == b"content"


async def removed(desk: Desk, blob: str) -> bool:
    """Request the deletion of a blob alone. Returns whether it was deleted."""
    async with desk.place.database.write() as connection:
        identity = await deletions.insert_deletion(
            connection, [], tenant=TENANT, subject="x", at=desk.place.clock(), by="key", blobs={blob: BlobFate()}
        )
    await desk.place.worker.advance()
    assert await finished(desk.place, identity)
    return desk.place.store.size(blob) is None


async def test_a_file_that_a_batch_reads_stays(desk: Desk) -> None:
    file = await desk.create(b"content", lifetime_s=3600)
    reader = await batch(desk, file)
    with pytest.raises(Conflict, match=reader):
        await desk.files.delete(TENANT, file.id, actor="key")
    desk.place.clock.advance(2 * DAY_S)
    await desk.sweeper.sweep()
    assert await desk.read(file) == b"content"
    await set_state(desk, reader, BatchState.CANCELLED)
    await desk.sweeper.sweep()
    with pytest.raises(NotFound):
        await desk.files.get(TENANT, file.id)


async def test_files_and_uploads_expire_on_any_node(desk: Desk, other: Desk, store: BlobStore) -> None:
    short, long = await desk.create(b"short", lifetime_s=3600), await desk.create(b"long", lifetime_s=10 * DAY_S)
    upload = await desk.begin(4)
    part = await desk.part(upload, b"part")
    desk.place.clock.advance(3599)
    await desk.sweeper.sweep()
    assert await desk.read(short) == b"short"
    assert desk.sweeper.usage[Purpose.BATCH].bytes == len(b"shortlong")
    desk.place.clock.advance(DAY_S)
    for one in (desk, other):
        await one.place.nodes.beat()
    with pytest.raises(Conflict, match="has expired"):
        await desk.complete(upload, part)
    await asyncio.gather(desk.sweeper.sweep(), other.sweeper.sweep())
    for one in (desk, other, desk):
        await one.place.worker.advance()
    assert stored(store) == {long.digest}
    async with desk.place.database.read() as connection:
        query = select(audit.c.action, audit.c.subject, audit.c.actor).where(audit.c.action.like("%expire%"))
        rows = await connection.execute(query)
        assert {tuple(row) for row in rows} == {
            ("file.expire", short.id, "engine"),
            ("file_upload.expired", upload, "engine"),
        }
        found = await file_uploads.find_file_upload(connection, short.tenant_id, upload)
    assert found is not None
    assert found.state is FileUploadState.EXPIRED


async def test_rows_are_forgotten_after_the_proof_only(desk: Desk) -> None:
    file, reader_file = await desk.create(b"content"), await desk.create(b"read")
    reader = await batch(desk, reader_file, BatchState.COMPLETED)
    for one in (file, reader_file):
        await desk.files.delete(TENANT, one.id, actor="key")
    desk.place.clock.advance(8 * DAY_S)
    await desk.place.nodes.beat()
    await desk.sweeper.sweep()
    assert await rows_left(desk) == 2
    await desk.place.worker.advance()
    await desk.sweeper.sweep()
    assert await rows_left(desk) == 1
    async with desk.place.database.write() as connection:
        await connection.execute(delete(batches).where(batches.c.id == reader))
    await desk.sweeper.sweep()
    assert await rows_left(desk) == 0


async def rows_left(desk: Desk) -> int:
    async with desk.place.database.read() as connection:
        return int(await connection.scalar(select(func.count()).select_from(file_rows)) or 0)


async def test_uploads_are_forgotten_before_their_files(desk: Desk) -> None:
    upload = await desk.begin(4)
    file = await desk.complete(upload, await desk.part(upload, b"part"))
    await desk.files.delete(TENANT, file.id, actor="key")
    await desk.place.worker.advance()
    desk.place.clock.advance(8 * DAY_S)
    await desk.sweeper.sweep()
    assert await rows_left(desk) == 0
    with pytest.raises(NotFound):
        await desk.uploads.cancel(TENANT, upload, actor="key")


async def test_two_nodes_complete_an_upload_once(desk: Desk, other: Desk, store: BlobStore) -> None:
    upload = await desk.begin(8)
    parts = [await desk.part(upload, b"part"), await other.part(upload, b"more")]
    results = await asyncio.gather(*(one.complete(upload, *parts) for one in (desk, other, desk)))
    assert len({file.id for file in results}) == 1
    for one in (desk, other, desk):
        await one.place.worker.advance()
    assert stored(store) == {results[0].digest}
    assert await other.read(results[0]) == b"partmore"


async def test_a_crash_while_completing_can_be_repeated(
    desk: Desk, gc: GcService, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await desk.begin(4)
    part = await desk.part(upload, b"part")

    async def crash(*_: object, **__: object) -> None:
        raise RegistryUnavailable("The database is gone.")

    with monkeypatch.context() as patch:
        patch.setattr(file_uploads, "end_file_upload", crash)
        with pytest.raises(RegistryUnavailable):
            await desk.complete(upload, part)
    (garbage,) = await collect(gc)
    file = await desk.complete(upload, part)
    assert garbage != file.digest
    assert await desk.read(file) == b"part"


async def test_an_upload_whose_parts_are_lost_says_so(desk: Desk, store: BlobStore) -> None:
    upload = await desk.begin(4)
    part = await desk.part(upload, b"part")
    for blob in stored(store):
        store.delete(blob)
    with pytest.raises(FileLost, match="Begin a new upload"):
        await desk.complete(upload, part)


async def test_no_tenant_reaches_the_files_of_another(desk: Desk) -> None:
    file, upload = await desk.create(b"content"), await desk.begin(4)
    part = await desk.part(upload, b"part")
    own = await desk.create(b"own", tenant=OTHER)
    for call in (
        desk.files.get(OTHER, file.id),
        desk.files.delete(OTHER, file.id, actor="key"),
        desk.files.list_files(OTHER, purpose=None, after=file.id, ascending=True, limit=9),
        desk.uploads.part_room(OTHER, upload),
        desk.uploads.add_part(OTHER, upload, desk.write(b"part")),
        desk.uploads.complete(OTHER, upload, [part], md5=None, actor="key"),
        desk.uploads.cancel(OTHER, upload, actor="key"),
    ):
        with pytest.raises(NotFound):
            await call
    page = await desk.files.list_files(OTHER, purpose=None, after=None, ascending=True, limit=9)
    assert page.files == (own,)
    theirs = await desk.uploads.create(
        OTHER, size=4, filename="x", mime_type="x", purpose=Purpose.BATCH, lifetime_s=DAY_S, actor="key"
    )
    with pytest.raises(InvalidRequest):
        await desk.uploads.complete(OTHER, theirs.id, [part], md5=None, actor="key")


async def test_a_deleted_tenant_takes_its_files_along(node: Node, desk: Desk, store: BlobStore) -> None:
    file, upload = await desk.create(b"content"), await desk.begin(4)
    await desk.part(upload, b"part")
    reader = await batch(desk, file)
    with pytest.raises(Conflict, match="unfinished batches"):
        await node.tenants.delete(TENANT, actor="cli")
    await set_state(desk, reader, BatchState.FAILED)
    await node.tenants.delete(TENANT, actor="cli")
    await desk.place.worker.advance()
    assert stored(store) == set()


async def test_segments_come_back_line_by_line(desk: Desk, store: BlobStore, tmp_path: Path) -> None:
    contents, lines = desk.place.contents, [f'{{"line": {number}}}' for number in range(256)]
    async with contents.stored_segment(lines) as first, contents.stored_segment(lines) as second:
        pass
    assert first != second
    async with contents.scratch() as folder:
        await contents.read_segment(first, folder / "segment")
        text = await asyncio.to_thread((folder / "segment").read_text)
    assert text.splitlines() == lines
    assert not folder.exists()
    store.delete(second)
    async with contents.scratch() as folder:
        with pytest.raises(FileLost):
            await contents.read_segment(second, folder / "segment")


async def test_put_stores_a_file_without_a_quota(desk: Desk) -> None:
    tenant_id = (await desk.create(b"x" * 90_000)).tenant_id
    files_made: list[StoredFile] = []
    for _ in range(6):
        values: dict[str, Any] = {"tenant_id": tenant_id, "purpose": Purpose.BATCH_OUTPUT, "filename": "out.jsonl"}
        values |= {"created_by": "key", "expires_at": desk.place.clock() + timedelta(days=30)}
        files_made.append(await desk.place.contents.put(desk.write(b"y" * 50_000), **values))
    page = await desk.files.list_files(TENANT, purpose="batch_output", after=None, ascending=False, limit=9)
    assert {file.id for file in page.files} == {file.id for file in files_made}
    assert replace(files_made[0], created_at=page.files[-1].created_at) in page.files
