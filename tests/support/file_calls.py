"""Calls of OpenAI's files and uploads."""

from typing import Any

import httpx

LINE = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
ABSENT_FILE, ABSENT_UPLOAD, ABSENT_PART = f"file-{'0' * 32}", f"upload_{'0' * 32}", f"part_{'0' * 32}"


def form(content: bytes = LINE, *, name: str = "in.jsonl", purpose: str = "batch", **fields: str) -> dict[str, Any]:
    """Return the form of a new file, for httpx."""
    return {"files": {"file": (name, content)}, "data": {"purpose": purpose, **fields}}


def create(client: httpx.Client, content: bytes = LINE, **options: str) -> dict[str, Any]:
    """Create a file and return its object."""
    answer = client.post("/v1/files", **form(content, **options))
    assert answer.status_code == 200, answer.text
    file: dict[str, Any] = answer.json()
    return file


def begin(client: httpx.Client, size: int, **fields: Any) -> dict[str, Any]:
    """Begin an upload and return its object."""
    body = {"bytes": size, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **fields}
    answer = client.post("/v1/uploads", json=body)
    assert answer.status_code == 200, answer.text
    upload: dict[str, Any] = answer.json()
    return upload


def add_part(client: httpx.Client, upload_id: str, content: bytes) -> str:
    """Add a part and return its id."""
    answer = client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("part", content)})
    assert answer.status_code == 200, answer.text
    identity: str = answer.json()["id"]
    return identity


def content(client: httpx.Client, file_id: str) -> bytes:
    """Download a file."""
    answer = client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return answer.content
