"""openai SDK: files, uploads in chunks, and batches from creation to each end that a client can bring about."""

import json
import os
import time
from typing import Any, Final

import openai

CHAT: Final = "/v1/chat/completions"
ENDS = ("completed", "failed", "expired", "cancelled")
_POLL_S = 0.2
_PATIENCE_S = 300
_PART_BYTES = 2**20
#: Lines that a batch with a width of one does not finish before it is cancelled.
_MANY = 2_000


def lines(count: int, **body: Any) -> bytes:
    fields = {"messages": [{"role": "user", "content": "What does sugar cost?"}], "max_tokens": 4} | body
    requests = ({"custom_id": f"row-{n}", "method": "POST", "url": CHAT, "body": fields} for n in range(count))
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def create(client: openai.OpenAI, content: bytes, **options: Any) -> Any:
    """Upload a file and create a batch of it with the demo's adapter."""
    uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
    return begin(client, uploaded.id, **options)


def begin(client: openai.OpenAI, file_id: str, **options: Any) -> Any:
    extra = {"tenora": {"model": os.environ["TENORA_MODEL"], **options}}
    batch = client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h", extra_body=extra)
    assert batch.status == "validating"
    return batch


def poll(client: openai.OpenAI, batch: Any, *states: str) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while (batch := client.batches.retrieve(batch.id)).status not in states:
        assert batch.status not in ENDS, batch
        assert time.monotonic() < deadline, batch
        time.sleep(_POLL_S)
    return batch


def results(client: openai.OpenAI, file_id: str) -> list[Any]:
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def completed(client: openai.OpenAI) -> None:
    batch = poll(client, create(client, lines(3)), "completed")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 3, 0)
    answers = results(client, batch.output_file_id)
    assert [line["custom_id"] for line in answers] == ["row-0", "row-1", "row-2"]
    assert all(line["response"]["body"]["choices"][0]["message"]["content"] for line in answers)
    assert client.batches.list(limit=1).data[0].id == batch.id
    assert {batch.input_file_id, batch.output_file_id} <= {file.id for file in client.files.list()}
    assert client.files.delete(batch.output_file_id).deleted


def failed(client: openai.OpenAI) -> None:
    batch = poll(client, create(client, lines(1, temperature=3)), "failed")
    assert [problem.line for problem in batch.errors.data] == [1]


def cancelled(client: openai.OpenAI) -> None:
    batch = poll(client, create(client, lines(_MANY), width=1), "in_progress")
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = poll(client, batch, "cancelled")
    kept = results(client, batch.output_file_id) if batch.output_file_id else []
    errors = results(client, batch.error_file_id)
    assert len(kept) + len(errors) == _MANY
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}


def in_chunks(client: openai.OpenAI) -> None:
    content = lines(50, user="u" * 500) + b"\n" * (2 * _PART_BYTES)
    upload = client.uploads.upload_file_chunked(
        file=content,
        filename="in.jsonl",
        bytes=len(content),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=_PART_BYTES,
    )
    assert (upload.status, upload.file.bytes) == ("completed", len(content))
    assert client.files.content(upload.file.id).read() == content
    batch = poll(client, begin(client, upload.file.id), "completed")
    assert batch.request_counts.completed == 50


def main() -> None:
    client = openai.OpenAI(base_url=os.environ["TENORA_URL"], api_key=os.environ["TENORA_KEY"], max_retries=0)
    for run in (completed, failed, cancelled, in_chunks):
        run(client)


if __name__ == "__main__":
    main()
