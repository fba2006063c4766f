"""Calls of OpenAI's batches."""

import time
from typing import Any

import httpx

from tests.support.batch_admission import CHAT, jsonl
from tests.support.file_calls import create as create_file

ABSENT_BATCH = f"batch_{'0' * 16}"
_PATIENCE_S = 60


def create(client: httpx.Client, lines: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Upload a file of lines, create a batch of it, and return its object."""
    file = create_file(client, jsonl(lines))
    answer = client.post(
        "/v1/batches",
        json={"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", **fields},
    )
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    return batch


def validated(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    """Wait until a batch is not validated any more, and return it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        batch: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").json()
        if batch["status"] != "validating":
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
