"""Answer with a file from this node's disk."""

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Any

from app.api.file_answer import FileAnswer

CONTENT = b"x" * 3 * 2**20


def answer_of(path: Path, holds: contextlib.AsyncExitStack) -> FileAnswer:
    path.write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    return FileAnswer(
        path, name="x", size=len(CONTENT), digest=digest, media_type="text/plain", holds=holds, stall_s=0.2
    )


async def receive() -> dict[str, Any]:
    """Wait: the client stays connected."""
    await asyncio.Event().wait()
    return {}


async def test_a_client_that_takes_no_bytes_lets_go_of_the_file(tmp_path: Path) -> None:
    released, holds, sent = asyncio.Event(), contextlib.AsyncExitStack(), []
    holds.callback(released.set)

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            await asyncio.Event().wait()

    await answer_of(tmp_path / "file", holds)({"type": "http"}, receive, send)
    assert released.is_set()
    assert all(message.get("more_body", True) for message in sent)
