"""Answer with a file from this node's disk, sent in chunks."""

import asyncio
import base64
import contextlib
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.streaming import until_disconnect, while_key_works
from app.domain.errors import Unauthenticated

BINARY = "application/octet-stream"

_CHUNK_BYTES = 2**20
#: Seconds in which a client must take a chunk. A slower one would hold a copy on disk, and its deletion, for long.
STALL_S = 120.0


class FileAnswer(Response):
    """Response that sends a file in chunks, and closes what holds the file however the response ends.

    Args:
        name: name for the client; printable.
        digest: SHA-256 of the file, hex.
        holds: closed at the end.
        stall_s: seconds in which the client must take a chunk.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        size: int,
        digest: str,
        media_type: str,
        holds: contextlib.AsyncExitStack,
        stall_s: float = STALL_S,
    ) -> None:
        self._path, self._holds, self._stall_s = path, holds, stall_s
        super().__init__(media_type=media_type)
        encoded = base64.b64encode(bytes.fromhex(digest)).decode()
        self.headers.update(
            {
                "content-length": str(size),
                "content-disposition": attachment(name),
                # The bytes are immutable, so their digest is a strong ETag.
                "etag": f'"{digest}"',
                "repr-digest": f"sha-256=:{encoded}:",  # RFC 9530
                "cache-control": "private, no-transform",
                "x-content-type-options": "nosniff",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # If the key stops working, or the client stalls, the answer stays incomplete: the connection closes before
            # the last byte.
            with contextlib.suppress(ClientDisconnect, Unauthenticated, TimeoutError):
                async with while_key_works(scope):
                    await until_disconnect(receive, self._send_file(send))
        finally:
            await self._holds.aclose()

    async def _send_file(self, send: Send) -> None:
        file = await asyncio.to_thread(self._path.open, "rb")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_chunks(file, send)
        finally:
            # close() waits for a read that still runs in its thread.
            await asyncio.shield(asyncio.to_thread(file.close))

    async def _send_chunks(self, file: BinaryIO, send: Send) -> None:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            async with asyncio.timeout(self._stall_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def attachment(name: str) -> str:
    """Build a Content-Disposition (RFC 6266); a name outside ASCII is sent in UTF-8, and a replacement in ASCII."""
    plain = "".join(character if character.isascii() and character not in '"\\' else "_" for character in name)
    header = f'attachment; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='')}"
