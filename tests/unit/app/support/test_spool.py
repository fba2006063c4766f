"""Spool: places, batches, full disks, and leftovers of crashed processes."""

import asyncio
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.errors import DiskFull
from app.domain.errors import Busy
from app.support.spool import BATCH_BYTES, Spool, SpoolWriter


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", places=1, patience_s=0.01)
    spool.open()
    yield spool
    spool.close()


async def test_a_folder_goes_with_its_block(spool: Spool) -> None:
    async with spool.folder("pricing") as folder:
        (folder / "file").write_bytes(b"x")
    assert not folder.exists()


async def test_it_goes_when_the_block_fails(spool: Spool) -> None:
    folders: list[Path] = []

    async def fail() -> None:
        async with spool.folder("pricing") as folder:
            folders.append(folder)
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        await fail()
    assert not folders[0].exists()


async def test_places_are_limited_and_come_free(spool: Spool) -> None:
    async with spool.folder("pricing"):
        with pytest.raises(Busy) as caught:
            async with spool.folder("pricing"):
                pass
        assert caught.value.retry_after
    async with spool.folder("pricing"):
        pass


async def test_one_tenant_leaves_half_of_the_places_to_the_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", places=4, patience_s=0.01)
    spool.open()
    async with spool.folder("pricing"), spool.folder("pricing"):
        with pytest.raises(Busy):
            async with spool.folder("pricing"):
                pass
        async with spool.folder("retail"), spool.folder("supply"):
            pass
    async with spool.folder("pricing"):
        pass
    spool.close()


async def test_who_is_cancelled_while_it_waits_takes_no_place(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", places=1, patience_s=60)
    spool.open()

    async def upload() -> None:
        async with spool.folder("pricing"):
            pass

    async with spool.folder("retail"):
        waiting = [asyncio.create_task(upload()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 10)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    spool.close()


async def test_a_writer_hashes_what_it_writes(tmp_path: Path) -> None:
    content = os.urandom(2 * BATCH_BYTES + 12345)
    writer = SpoolWriter(tmp_path / "file")
    for start in range(0, len(content), 70_001):
        writer.add(memoryview(content)[start : start + 70_001])
        if writer.due:
            await writer.flush()
    file = await writer.finish()
    assert (file.size, file.digest) == (len(content), hashlib.sha256(content).hexdigest())
    assert file.path.read_bytes() == content


async def test_an_empty_file(tmp_path: Path) -> None:
    file = await SpoolWriter(tmp_path / "file").finish()
    assert (file.size, file.digest) == (0, hashlib.sha256(b"").hexdigest())


async def test_a_full_disk_is_said_so(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SpoolWriter(tmp_path / "file")
    resource.setrlimit(resource.RLIMIT_FSIZE, (BATCH_BYTES, hard))
    try:
        writer.add(memoryview(bytes(BATCH_BYTES + 1)))
        with pytest.raises(DiskFull):
            await writer.finish()
        await writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_cancelled_upload_waits_for_its_thread(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "file")

    async def upload() -> None:
        try:
            while True:
                writer.add(memoryview(bytes(BATCH_BYTES)))
                await writer.flush()
        finally:
            await writer.abandon()

    task = asyncio.create_task(upload())
    while writer.size < 3 * BATCH_BYTES:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="closed file"):
        writer._file.write(b"")


def test_what_a_crashed_process_left_is_removed_and_nobody_elses(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    lives = "from pathlib import Path; from app.support.spool import Spool; import sys; "
    lives += "Spool(Path(sys.argv[1]), places=1, patience_s=1).open(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", lives, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (others,) = root.iterdir()
        (others / "upload").mkdir()
        Spool(root, places=1, patience_s=1).open()
        assert (others / "upload").is_dir()
        other.kill()
        other.wait()
    spool = Spool(root, places=1, patience_s=1)
    spool.open()
    assert not others.exists()
    spool.close()
