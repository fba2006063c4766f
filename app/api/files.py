"""Export route: ``GET .../adapters/{adapter}/versions/{number}/files/{name}``, mounted with the adapter routes."""

import asyncio
import base64
import contextlib
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Path
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.cache import CONFIG_NAME
from app.api.adapters import Number, Reader
from app.api.auth import GatewayDep
from app.api.schemas import answers
from app.api.streaming import until_disconnect, while_key_works
from app.domain.errors import Unauthenticated
from app.services.publishing.export import ExportedFile

router = APIRouter(tags=["adapters"])

_CHUNK_BYTES = 2**20
_BINARY = "application/octet-stream"


class FileAnswer(Response):
    """Response that sends a version's file in chunks, and releases its lease however the response ends."""

    def __init__(self, file: ExportedFile) -> None:
        self._file = file
        super().__init__(media_type="application/json" if file.name == CONFIG_NAME else _BINARY)
        digest = base64.b64encode(bytes.fromhex(file.digest)).decode()
        self.headers.update(
            {
                "content-length": str(file.size),
                "content-disposition": f'attachment; filename="{file.name}"',
                # A version's bytes are immutable, so their digest is a strong ETag.
                "etag": f'"{file.digest}"',
                "repr-digest": f"sha-256=:{digest}:",  # RFC 9530
                "cache-control": "private, no-transform",
                "x-content-type-options": "nosniff",
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # If the key stops working, the answer stays incomplete: the connection closes before the last byte.
            with contextlib.suppress(ClientDisconnect, Unauthenticated):
                async with while_key_works(scope):
                    await until_disconnect(receive, self._send_file(send))
        finally:
            self._file.lease.release()

    async def _send_file(self, send: Send) -> None:
        file = await asyncio.to_thread(self._file.path.open, "rb")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_chunks(file, send)
        finally:
            # close() waits for a read that still runs in its thread.
            await asyncio.shield(asyncio.to_thread(file.close))


async def _send_chunks(file: BinaryIO, send: Send) -> None:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@router.get(
    "/{adapter}/versions/{number}/files/{name}",
    summary="Download one of a version's two files",
    response_class=Response,
    responses={
        **answers(404),
        200: {
            "description": "Bytes of the file, with their SHA-256 in `repr-digest`",
            "content": {
                _BINARY: {"schema": {"type": "string", "format": "binary"}},
                "application/json": {"schema": {"type": "object"}},
            },
        },
    },
)
async def download_version_file(
    adapter: str,
    number: Number,
    name: Annotated[str, Path(description="Name of the file: adapter_config.json or adapter_model.safetensors")],
    owner: Reader,
    gateway: GatewayDep,
) -> Response:
    """The bytes are those of the upload. The header `repr-digest` has their SHA-256."""
    return FileAnswer(await gateway.export.open(owner.tenant, adapter, number, name))
