"""Leftovers of batches and files, on both databases: nothing of them grows without bound."""

from sqlalchemy import func, select, update

from app.database import batch_chunks as batch_chunks_repo
from app.database import batch_results, deletions
from app.database.tables import batch_chunks, deletion_nodes
from app.database.tables import deletions as deletion_rows
from app.domain.batches import LineResult
from app.domain.deletions import BlobFate, DeletedVersion
from app.services.batches.finishing import Finisher
from app.services.files import sweeper as file_sweeper
from app.services.files.sweeper import FileSweeper
from tests.support.batch_runs import FINAL
from tests.support.batches import Owner, created, line, until_state
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")

DAY_S = 86400


async def test_two_servers_that_finish_a_chunk_leave_one_blob(node: Node, servers, pricing, tmp_path, monkeypatch):
    server = await servers.start(node)
    await server.runner.stop()
    batch = await created(server, pricing, [line("one", "x")], {"demo": None}, folder=tmp_path)
    before = {blob.digest for blob in server.store.list_blobs()}
    async with node.database.write() as connection:
        await batch_results.add_failures(connection, [LineResult(batch.id, 1, 0, False, "{}")])
    (chunk,) = await chunks_of(node, batch.id)
    finisher = Finisher(node.database, server.store, server.contents, node="n", lease_s=60.0, clock=node.clock)
    move = batch_results.finish_chunk

    async def slow(connection, *args):
        """Let another server be faster, between the blob and the commit."""
        done = update(batch_chunks).values(state="done", segment="0" * 64)
        await connection.execute(done)
        return await move(connection, *args)

    monkeypatch.setattr(batch_results, "finish_chunk", slow)
    assert await finisher.finish_chunk(chunk) == set()
    assert {blob.digest for blob in server.store.list_blobs()} == before


async def test_files_of_a_killed_process_go_at_the_next_start(node: Node, servers, pricing, tmp_path):
    server = await servers.start(node)
    batch = await created(server, pricing, [line("one", "x")], {"demo": None}, folder=tmp_path)
    await until_state(node.database, batch.id, *FINAL)
    await server.kill()
    folder = server.home / "files"
    copies = list((folder / "copies").iterdir())
    (folder / "scratch" / "left").mkdir()
    (folder / "scratch" / "left" / "blob").write_bytes(b"x")
    assert copies, "the input file has a local copy"
    await server.start()
    assert list((folder / "scratch").iterdir()) == []
    assert set((folder / "copies").iterdir()).isdisjoint(copies)


async def chunks_of(node: Node, batch_id: str):
    async with node.database.read() as connection:
        return await batch_chunks_repo.chunks_of(connection, batch_id)


async def deleted(node: Node, subject: str, **options) -> str:
    """A deletion that has finished, confirmed by one node."""
    async with node.database.write() as connection:
        identity = await deletions.insert_deletion(
            connection,
            options.pop("versions", []),
            tenant="pricing",
            subject=subject,
            at=node.clock(),
            by="key",
            **options,
        )
        await deletions.confirm(connection, identity, "n" * 32, disk_gone_at=node.clock())
        await deletions.finish(connection, identity, at=node.clock())
    return identity


async def test_reports_of_deleted_files_and_parts_go_after_30_days(node: Node, pricing: Owner, monkeypatch):
    monkeypatch.setattr(file_sweeper, "_AT_ONCE", 2)
    for number in range(5):
        await deleted(node, f"file-{number:032}", blobs={f"{number:064}": BlobFate()}, file_id=f"file-{number:032}")
    key = (await node.publish("pricing", "prices", "a")).key
    version = DeletedVersion(key, "prices@1", shared=False)
    kept = {await deleted(node, "prices@1", versions=[version])}
    node.clock.advance(29 * DAY_S)
    kept.add(await deleted(node, "upload_1", blobs={"a" * 64: BlobFate()}))
    sweeper = FileSweeper(node.database, clock=node.clock)
    await sweeper.sweep()
    assert len(await deletion_ids(node)) == 7
    node.clock.advance(2 * DAY_S)
    await sweeper.sweep()
    assert await deletion_ids(node) == kept
    async with node.database.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(deletion_nodes)) == 2


async def deletion_ids(node: Node) -> set[str]:
    async with node.database.read() as connection:
        return set(await connection.scalars(select(deletion_rows.c.id)))
