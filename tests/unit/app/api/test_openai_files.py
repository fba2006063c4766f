"""The published openai SDK for files and uploads. These routes need no engine."""

import hashlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from tests.support.file_calls import ABSENT_FILE, LINE
from tests.support.site import Site, Unit

PART_BYTES = 2**20


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=unit.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(site: Site, unit: Unit) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=unit.key, max_retries=0) as client:
        yield client


def test_a_file_from_creation_to_deletion(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(LINE * 100)
    with path.open("rb") as source:
        created = client.files.create(file=source, purpose="batch")
    assert (created.object, created.filename, created.purpose) == ("file", path.name, "batch")
    assert (created.bytes, created.status) == (len(LINE) * 100, "processed")
    assert client.files.retrieve(created.id) == created
    assert client.files.wait_for_processing(created.id) == created
    assert client.files.content(created.id).read() == LINE * 100
    with client.files.with_streaming_response.content(created.id) as answer:
        assert b"".join(answer.iter_bytes(1000)) == LINE * 100
    deleted = client.files.delete(created.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (created.id, "file", True)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(created.id)


def test_contents_of_every_kind_that_the_sdk_takes(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(LINE)
    for source in (path, LINE, io.BytesIO(LINE), ("named.jsonl", LINE), ("named.jsonl", LINE, "application/jsonl")):
        created = client.files.create(file=source, purpose="batch")
        assert client.files.content(created.id).read() == LINE


def test_expires_after(client: openai.OpenAI) -> None:
    expires = {"anchor": "created_at", "seconds": 7200}
    created = client.files.create(file=LINE, purpose="batch", expires_after=expires)  # type: ignore[arg-type]
    assert created.expires_at == created.created_at + 7200


def test_pages_are_followed(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=LINE, purpose="batch").id for _ in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc", purpose="batch")] == ids
    assert [file.id for file in client.files.list(after=ids[1])] == ids[:1]


def test_a_file_in_chunks(client: openai.OpenAI, tmp_path: Path) -> None:
    content = os.urandom(3 * PART_BYTES + 5)
    path = tmp_path / "large.jsonl"
    path.write_bytes(content)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="application/jsonl", purpose="batch", part_size=PART_BYTES, md5=md5
    )
    assert (upload.status, upload.object, upload.bytes) == ("completed", "upload", len(content))
    assert upload.file is not None
    assert (upload.file.filename, upload.file.bytes) == ("large.jsonl", len(content))
    assert client.files.content(upload.file.id).read() == content


def test_an_upload_step_by_step_and_its_cancellation(client: openai.OpenAI) -> None:
    upload = client.uploads.create(bytes=4, filename="a.jsonl", mime_type="application/jsonl", purpose="batch")
    assert (upload.status, upload.file) == ("pending", None)
    second, first = (client.uploads.parts.create(upload.id, data=data) for data in (b"34", b"12"))
    assert (first.object, first.upload_id) == ("upload.part", upload.id)
    with pytest.raises(openai.BadRequestError):
        client.uploads.complete(upload.id, part_ids=[first.id, second.id], md5="0" * 32)
    done = client.uploads.complete(upload.id, part_ids=[first.id, second.id])
    assert done.file is not None
    assert client.files.content(done.file.id).read() == b"1234"
    other = client.uploads.create(bytes=4, filename="a.jsonl", mime_type="application/jsonl", purpose="batch")
    assert client.uploads.cancel(other.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.uploads.parts.create(other.id, data=b"12")


def test_refusals_are_the_errors_of_the_sdk(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.files.create(file=LINE, purpose="fine-tune")
    assert (wrong.value.param, wrong.value.code) == ("purpose", "invalid_value")
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=b"", purpose="batch")
    with pytest.raises(openai.NotFoundError):
        client.files.content(ABSENT_FILE)
    with pytest.raises(openai.NotFoundError):
        client.files.delete(ABSENT_FILE)


async def test_the_asynchronous_client(async_client: openai.AsyncOpenAI) -> None:
    created = await async_client.files.create(file=LINE, purpose="batch")
    assert [file.id async for file in async_client.files.list()] == [created.id]
    assert (await async_client.files.content(created.id)).content == LINE
    upload = await async_client.uploads.upload_file_chunked(
        file=LINE * 2, filename="a.jsonl", bytes=2 * len(LINE), mime_type="text/plain", purpose="batch", part_size=50
    )
    assert upload.file is not None
    assert (await async_client.files.content(upload.file.id)).content == LINE * 2
