"""Files and batches in the library, against a small server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenora_client import AsyncClient, Client, NotFound, Progress, TenoraError
from tenora_client.exporting import DamagedDownload
from tests.support.batch_server import BatchServer, batch_server

LINE = '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}\n'


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with batch_server() as server:
        yield server


@pytest.fixture
def batches(server: BatchServer) -> Iterator[Client]:
    with Client(server.url, "tnr_key") as tenora:
        yield tenora


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(LINE * 5_000)
    return path


def test_a_batch_from_upload_to_download(batches: Client, server: BatchServer, lines: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    file = batches.files.upload(lines, on_progress=seen.append, expires_in_s=3600)
    assert (file.bytes, file.filename) == (lines.stat().st_size, "in.jsonl")
    assert [progress.fraction for progress in seen][-1] == 1.0
    batch = batches.batches.create(file.id, model="pricing", width=4, metadata={"run": "17"})
    assert (batch.tenora.model, batch.tenora.width) == ("pricing", 4)
    ended = batches.batches.wait(batch.id)
    assert (ended.status, ended.request_counts.completed) == ("completed", 5_000)
    out = batches.files.download(ended.output_file_id or "", tmp_path / "out.jsonl")
    assert len(out.read_text().splitlines()) == 5_000
    assert [found.id for found in batches.batches.list()] == [batch.id]
    assert batches.batches.show(batch.id).metadata == {"run": "17"}
    assert batches.files.delete(file.id).deleted
    assert [found.id for found in batches.files.list()] == [ended.output_file_id]


def test_a_listing_goes_on_after_a_page(batches: Client, server: BatchServer) -> None:
    server.files = {f"file-{n:032x}": (f"{n}.jsonl", b"") for n in range(250)}
    assert [file.filename for file in batches.files.list()] == [f"{n}.jsonl" for n in reversed(range(250))]
    assert server.requests.count("GET /v1/files") == 3


def test_a_wait_ends_with_its_time(batches: Client, server: BatchServer, lines: Path) -> None:
    server.limit = 1
    batch = batches.batches.create(batches.files.upload(lines).id)
    with pytest.raises(TenoraError, match="It goes on: wait for it again, or cancel it"):
        batches.batches.wait(batch.id, timeout_s=0)
    assert batches.batches.cancel(batch.id).status == "cancelling"
    assert batches.batches.wait(batch.id).status == "cancelled"


def test_a_damaged_download_leaves_the_earlier_file(
    batches: Client, server: BatchServer, lines: Path, tmp_path: Path
) -> None:
    file = batches.files.upload(lines)
    server.damage = b"\n"
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(DamagedDownload, match=r"out\.jsonl does not match"):
        batches.files.download(file.id, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_batch_is_not_found(batches: Client) -> None:
    with pytest.raises(NotFound) as error:
        batches.batches.show("batch_none")
    assert error.value.param == "batch_id"


async def test_both_clients_do_the_same(server: BatchServer, lines: Path, tmp_path: Path) -> None:
    async with AsyncClient(server.url, "tnr_key") as tenora:
        file = await tenora.files.upload(lines)
        batch = await tenora.batches.wait((await tenora.batches.create(file.id)).id)
        await tenora.files.download(batch.output_file_id or "", tmp_path / "out.jsonl")
        assert [found.id async for found in tenora.batches.list()] == [batch.id]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5_000
