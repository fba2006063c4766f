"""Batches over HTTP: upload lines, create a batch, wait for its end, read its files."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

SCOPES = ("inference", "batch", "usage:read")
FINAL = ("completed", "failed", "expired", "cancelled")
_POLL_S = 0.1


def line(custom_id: str, body: Mapping[str, Any], endpoint: str = "/v1/completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": dict(body)}


def create(client: httpx.Client, lines: Iterable[Mapping[str, Any]], **options: Any) -> str:
    """Upload lines and create a batch of them; return its id."""
    lines = list(lines)
    content = "".join(f"{json.dumps(entry)}\n" for entry in lines)
    file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)})
    assert file.is_success, file.text
    body = {"input_file_id": file.json()["id"], "endpoint": lines[0]["url"], "completion_window": "24h", **options}
    batch = client.post("/v1/batches", json=body)
    assert batch.is_success, batch.text
    return str(batch.json()["id"])


def show(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    answer = client.get(f"/v1/batches/{batch_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def wait(client: httpx.Client, batch_id: str, timeout_s: float = 300) -> dict[str, Any]:
    """Wait until a batch has ended, and return it."""
    deadline = time.monotonic() + timeout_s
    while (batch := show(client, batch_id))["status"] not in FINAL:
        assert time.monotonic() < deadline, batch
        time.sleep(_POLL_S)
    return batch


def content(client: httpx.Client, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file; none for a file that does not exist."""
    if file_id is None:
        return []
    answer = client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return [json.loads(text) for text in answer.text.splitlines()]


def output(client: httpx.Client, lines: Iterable[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Run a batch to its end, and return the lines of its output; none may have failed."""
    batch = wait(client, create(client, lines, **options))
    assert batch["status"] == "completed", batch
    assert batch["error_file_id"] is None, content(client, batch["error_file_id"])
    return content(client, batch["output_file_id"])
