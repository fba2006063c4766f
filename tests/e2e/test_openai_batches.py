"""The published openai SDK for batches against the real engine: each state, and the files of each end."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import openai
import pytest
from openai.types import Batch

from tests.support.server import Server, until

CHAT: Final = "/v1/chat/completions"
_PATIENCE_S = 300
#: Lines that a batch with a width of one does not finish before the test goes on.
MANY = 2_000
_PART_BYTES = 2**20


@pytest.fixture(scope="module")
def client(server: Server, keys: dict[str, str]) -> Iterator[openai.OpenAI]:
    key = server.tenant("pricing", scopes=("inference", "batch"))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def lines(count: int, **body: Any) -> bytes:
    """Build the content of a file with chats."""
    fields = {"model": "pricing", "max_tokens": 4} | body
    return b"".join(
        json.dumps(
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": CHAT,
                "body": {"messages": [{"role": "user", "content": f"How much is {number}?"}], **fields},
            }
        ).encode()
        + b"\n"
        for number in range(1, count + 1)
    )


def create(client: openai.OpenAI, content: bytes, **options: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **options)
    assert batch.status == "validating"
    return batch


def slow(client: openai.OpenAI) -> Batch:
    """Create a batch whose lines run one by one, and wait for its first answer."""
    batch = create(client, lines(MANY), extra_body={"tenora": {"width": 1}})
    until(lambda: counts(client.batches.retrieve(batch.id))[0] > 0, _PATIENCE_S)
    running = client.batches.retrieve(batch.id)
    assert (running.status, running.request_counts and running.request_counts.total) == ("in_progress", MANY)
    assert running.in_progress_at is not None
    return running


def reached(client: openai.OpenAI, batch: Batch, status: str) -> Batch:
    until(lambda: client.batches.retrieve(batch.id).status == status, _PATIENCE_S)
    return client.batches.retrieve(batch.id)


def counts(batch: Batch) -> tuple[int, int]:
    """Return the numbers of lines with an answer, and without one."""
    assert batch.request_counts is not None
    return batch.request_counts.completed, batch.request_counts.failed


def content(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def check_kept(client: openai.OpenAI, batch: Batch, code: str) -> None:
    """Check that each line of a batch that ended early is in one file, and that the error file has this code."""
    answers, errors = content(client, batch.output_file_id), content(client, batch.error_file_id)
    assert counts(batch) == (len(answers), len(errors))
    assert len(answers) > 0
    assert {line["error"]["code"] for line in errors} == {code}
    ids = [f"row-{number}" for number in range(1, MANY + 1)]
    assert sorted(ids) == sorted(line["custom_id"] for line in answers + errors)
    assert batch.usage is not None
    tokens = sum(line["response"]["body"]["usage"]["total_tokens"] for line in answers)
    assert batch.usage.total_tokens == tokens


@contextmanager
def no_files_of_ends(server: Server) -> Iterator[None]:
    """Keep batches from writing their output: the server's folder for temporary files is away for the block."""
    scratch = server.home / "files" / "scratch"
    scratch.rename(scratch.with_name("away"))
    try:
        yield
    finally:
        scratch.with_name("away").rename(scratch)


def end_window(server: Server, batch: Batch) -> None:
    """Move the end of a batch's window into the past.

    No real window moves, so a server reads its end once. A cause why no line runs makes it read the batch again.
    """
    blocked = json.dumps({"code": "window_moved", "message": "The test has moved the end of the window."})
    with closing(sqlite3.connect(server.home / "tenora.db", timeout=30)) as database, database:
        changed = database.execute(
            "update batches set expires_at = '2020-01-01 00:00:00.000000', blocked = ? where id = ?",
            [blocked, batch.id],
        ).rowcount
    assert changed == 1


def test_completed(client: openai.OpenAI) -> None:
    batch = reached(client, create(client, lines(3), metadata={"table": "prices"}), "completed")
    assert counts(batch) == (3, 0)
    assert batch.metadata == {"table": "prices"}
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert (batch.errors, batch.error_file_id) == (None, None)
    assert [line["custom_id"] for line in content(client, batch.output_file_id)] == ["row-1", "row-2", "row-3"]
    output = client.files.retrieve(str(batch.output_file_id))
    assert output.purpose == "batch_output"
    assert batch.id in [listed.id for listed in client.batches.list(limit=1)]
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_failed(client: openai.OpenAI) -> None:
    batch = reached(client, create(client, lines(2, temperature=3)), "failed")
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert [(problem.line, problem.code) for problem in batch.errors.data or []] == [
        (1, "invalid_value"), (2, "invalid_value"),
    ]  # fmt: skip
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


def test_cancelling_and_cancelled(client: openai.OpenAI, server: Server) -> None:
    batch = slow(client)
    with no_files_of_ends(server):
        assert client.batches.cancel(batch.id).status == "cancelling"
        assert client.batches.cancel(batch.id).status == "cancelling"
        cancelling = client.batches.retrieve(batch.id)
        assert (cancelling.status, cancelling.cancelled_at) == ("cancelling", None)
        assert cancelling.cancelling_at is not None
    ended = reached(client, batch, "cancelled")
    assert ended.cancelled_at is not None
    check_kept(client, ended, "batch_cancelled")
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_finalizing_and_expired(client: openai.OpenAI, server: Server) -> None:
    batch = slow(client)
    with no_files_of_ends(server):
        end_window(server, batch)
        finalizing = reached(client, batch, "finalizing")
        assert finalizing.finalizing_at is not None
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)
    ended = reached(client, batch, "expired")
    assert ended.expired_at is not None
    check_kept(client, ended, "batch_expired")


def test_a_file_in_chunks_runs(client: openai.OpenAI) -> None:
    text = lines(300) + b"\n" * 2 * _PART_BYTES
    upload = client.uploads.upload_file_chunked(
        file=text, filename="large.jsonl", bytes=len(text), mime_type="application/jsonl", purpose="batch",
        part_size=_PART_BYTES,
    )  # fmt: skip
    assert upload.status == "completed"
    assert upload.file is not None
    assert client.files.content(upload.file.id).read() == text
    batch = client.batches.create(input_file_id=upload.file.id, endpoint=CHAT, completion_window="24h")
    ended = reached(client, batch, "completed")
    assert counts(ended) == (300, 0)
    ids = [line["custom_id"] for line in content(client, ended.output_file_id)]
    assert ids == [f"row-{number}" for number in range(1, 301)]
