"""Usage journal on a node's disk: acknowledged records survive crashes and disk errors."""

import asyncio
import errno
import os
import subprocess
import sys
import zlib
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.batches import LineResult
from app.domain.usage import UsageEntry, UsageRecord
from app.services.usage import journal as journals
from app.services.usage.journal import Journal, forget, read
from tests.support.journal_records import RECORD, numbered


@pytest.fixture
async def journal(tmp_path):
    made = Journal(tmp_path)
    made.open()
    yield made
    await made.close()


def all_in(folder: Path) -> list[UsageRecord]:
    return [entry.record for path in sorted(folder.glob("*.journal")) for entry in read(path)]


async def test_what_was_added_is_read_again(journal, tmp_path):
    records = [numbered(number) for number in range(200)]
    await asyncio.gather(*(journal.add(UsageEntry(record)) for record in records))
    assert all_in(tmp_path) == records
    (path,) = await journal.sealed()
    assert [entry.record for entry in read(path)] == records


@given(
    st.builds(
        UsageRecord,
        request_id=st.text("0123456789abcdef", min_size=32, max_size=32),
        at=st.datetimes(timezones=st.just(UTC)),
        tenant_id=st.integers(1, 2**31 - 1),
        key_id=st.text("abc", max_size=16),
        version_id=st.none() | st.integers(1, 2**31 - 1),
        prompt_tokens=st.integers(0, 2**31 - 1),
        cached_tokens=st.integers(0, 2**31 - 1),
        output_tokens=st.integers(0, 2**31 - 1),
        ttft_s=st.none() | st.floats(0, 1e9),
        duration_s=st.floats(0, 1e9),
        load_s=st.none() | st.floats(0, 1e9),
        finish_reason=st.none() | st.text(max_size=32),
        status=st.integers(200, 599),
        cost=st.integers(0, 2**70),
        slot_s=st.floats(0, 1e9),
    ),
    st.none()
    | st.builds(
        LineResult,
        batch_id=st.text("0123456789abcdef_", max_size=40),
        line=st.integers(1, 10**6),
        chunk=st.integers(0, 10**5),
        succeeded=st.booleans(),
        content=st.text(),
    ),
)
def test_every_entry_is_a_line_and_back(record, result):
    entry = UsageEntry(record, result, None if result is None else "f" * 32)
    line = journals._line(entry)
    assert line.count(b"\n") == 1
    assert journals._entry(line) == entry
    for place in range(len(line) - 1):
        broken = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
        assert journals._entry(broken) is None


def test_a_journal_of_the_release_before_is_read(tmp_path):
    """Lines as 0.2.0 wrote them, with a checksum each."""
    values = (
        b'{"request_id":"%032x","at":"2026-11-21T12:30:15.123456+00:00","tenant_id":7,"key_id":"kkkkkkkkkkkkkkkk",'
        b'"version_id":3,"prompt_tokens":5,"cached_tokens":4,"output_tokens":2,"ttft_s":0.1,"duration_s":0.25,'
        b'"load_s":null,"finish_reason":"stop","status":200,"cost":0,"slot_s":0.0}'
    )
    texts = [values % number for number in range(3)]
    path = tmp_path / "old.journal"
    path.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts))
    assert list(read(path)) == [UsageEntry(numbered(number)) for number in range(3)]


async def test_its_size_is_that_of_what_the_database_does_not_have(journal, tmp_path):
    assert journal.size() == 0
    await journal.add(UsageEntry(RECORD))
    assert journal.size() == len(journals._line(UsageEntry(RECORD)))
    (path,) = await journal.sealed()
    await journal.add(UsageEntry(RECORD))
    assert journal.size() == 2 * len(journals._line(UsageEntry(RECORD)))
    forget(path)
    assert journal.size() == len(journals._line(UsageEntry(RECORD)))


async def test_a_file_that_is_written_is_nobody_elses(journal, tmp_path):
    other = Journal(tmp_path)
    other.open()
    await journal.add(UsageEntry(numbered(1)))
    assert await other.sealed() == []
    (path,) = await journal.sealed()
    await journal.add(UsageEntry(numbered(2)))
    # The other process may own a sealed file by now. Later records go to a new file.
    assert await other.sealed() == [path]
    forget(path)
    assert all_in(tmp_path) == [numbered(2)]
    await other.close()


async def test_what_others_left_comes_first_and_nothing_new_is_begun(journal, tmp_path):
    left = Journal(tmp_path)
    left.open()
    await left.add(UsageEntry(numbered(1)))
    await left.close()
    await journal.add(UsageEntry(numbered(2)))
    (first,) = await journal.left()
    assert [entry.record for entry in read(first)] == [numbered(1)]
    forget(first)
    assert await journal.left() == []
    (second,) = await journal.sealed()
    assert [entry.record for entry in read(second)] == [numbered(2)]


def test_a_process_that_was_killed_leaves_what_it_promised(tmp_path):
    with subprocess.Popen([sys.executable, "-c", _ADDING, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        promised = [int(process.stdout.readline()) for _ in range(20)]
        process.kill()
        promised += [int(line) for line in process.stdout if line.endswith(b"\n")]
    found = {record.request_id for record in all_in(tmp_path)}
    assert {numbered(number).request_id for number in promised} <= found


_ADDING = """
import asyncio, sys
from pathlib import Path
from app.domain.usage import UsageEntry
from app.services.usage.journal import Journal
from tests.support.journal_records import numbered

async def main():
    journal, number = Journal(Path(sys.argv[1])), 0
    journal.open()
    while True:
        batch = range(number, number := number + 5)
        await asyncio.gather(*(journal.add(UsageEntry(numbered(one))) for one in batch))
        for one in batch:
            print(one, flush=True)

asyncio.run(main())
"""


async def test_a_line_that_was_cut_off_is_left_out_in_silence(journal, tmp_path, caplog):
    await journal.add(UsageEntry(numbered(1)))
    (path,) = await journal.sealed()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole + whole[:length])
        assert [entry.record for entry in read(path)] == [numbered(1)]
    assert not caplog.records
    forget(path)
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_line_is_told_and_its_file_kept_aside(journal, tmp_path, caplog):
    for number in range(3):
        await journal.add(UsageEntry(numbered(number)))
    (path,) = await journal.sealed()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"output_tokens":2', b'"output_tokens":3') + lines[2])
    assert [entry.record for entry in read(path)] == [numbered(0), numbered(2)]
    assert f"Line 2 of the usage journal {path.name} cannot be read." in caplog.text
    forget(path)
    assert [kept.suffix for kept in tmp_path.iterdir()] == [".damaged"]
    assert await journal.sealed() == []


@pytest.mark.parametrize("failing", ["write", "fdatasync"])
async def test_a_full_disk_refuses_and_keeps_nothing(journal, tmp_path, monkeypatch, failing):
    await journal.add(UsageEntry(numbered(1)))
    whole = getattr(os, failing)

    def full(descriptor: int, *data: bytes) -> int:
        if data:
            os.pwrite(descriptor, data[0][:10], 0)  # simulate a partial write
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, failing, full)
        refused = await asyncio.gather(*(journal.add(UsageEntry(numbered(n))) for n in (2, 3)), return_exceptions=True)
    assert [type(error) for error in refused] == [OSError, OSError]
    assert getattr(os, failing) is whole
    await journal.add(UsageEntry(numbered(4)))
    assert all_in(tmp_path) == [numbered(1), numbered(4)]


async def test_who_gives_up_waiting_changes_nothing(tmp_path):
    journal = Journal(tmp_path)
    waiting = [asyncio.create_task(journal.add(UsageEntry(numbered(number)))) for number in range(10)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError, type(None)] * 5
    await journal.close()
    assert all_in(tmp_path) == [numbered(number) for number in range(10)]
