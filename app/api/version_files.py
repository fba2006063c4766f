"""Export route: ``GET .../adapters/{adapter}/versions/{number}/files/{name}``, mounted with the adapter routes."""

import contextlib
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from adapters.cache import CONFIG_NAME
from app.api.adapters import Number, Reader
from app.api.auth import GatewayDep
from app.api.file_answer import BINARY, FileAnswer
from app.api.schemas import answers
from app.services.publishing.export import ExportedFile

router = APIRouter(tags=["adapters"])


@router.get(
    "/{adapter}/versions/{number}/files/{name}",
    summary="Download one of a version's two files",
    response_class=Response,
    responses={
        **answers(404),
        200: {
            "description": "Bytes of the file, with their SHA-256 in `repr-digest`",
            "content": {
                BINARY: {"schema": {"type": "string", "format": "binary"}},
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
    return answer_of(await gateway.export.open(owner.tenant, adapter, number, name))


def answer_of(file: ExportedFile) -> FileAnswer:
    """Build the answer with a file, which releases the file's lease at its end."""
    holds = contextlib.AsyncExitStack()
    holds.callback(file.lease.release)
    return FileAnswer(
        file.path,
        name=file.name,
        size=file.size,
        digest=file.digest,
        media_type="application/json" if file.name == CONFIG_NAME else BINARY,
        holds=holds,
    )
