"""Preflight route: ``POST .../adapters/validate``, mounted with the adapter routes."""

from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.validation import Summary
from app.api.auth import GatewayDep
from app.api.multipart import OPTIONS_NAME, receive_head
from app.api.schemas import ReasonOut, answers
from app.api.upload_schemas import UploadBaseOut
from app.api.uploads import Writer
from app.served_base import ServedBase
from app.services.publishing.preflight import UNCHECKED, Preflight, read_preflight_options

router = APIRouter(tags=["adapters"])

_FILE = {"type": "string", "format": "binary"}
_OPTIONS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["weights_bytes"],
    "properties": {
        "weights_bytes": {"type": "integer", "minimum": 0, "description": f"Size of the whole {WEIGHTS_NAME}"},
        "adapter": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "description": "Name under which the version would be published",
        },
        "files": {
            "type": "array",
            "items": {"type": "string", "maxLength": 255},
            "maxItems": 1000,
            "description": "Names of the other files in the folder",
        },
    },
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {CONFIG_NAME: _FILE, WEIGHTS_NAME: _FILE, OPTIONS_NAME: _OPTIONS},
                    "required": [CONFIG_NAME, WEIGHTS_NAME, OPTIONS_NAME],
                }
            }
        },
    }
}


class ValidatedVersionOut(BaseModel):
    """Summary of the version that an upload would make."""

    rank: int = Field(description="Largest rank of its modules")
    alpha: float
    target_modules: list[str] = Field(description="Kinds of linear layers that it changes")
    modules: int = Field(description="Number of linear layers that it changes")
    saved_modules: list[str] = Field(description="Full copies of the head in the file, which are not served")
    parameters: int = Field(description="Number of values in its tensors")
    dtype: str = Field(description="Data type of its tensors, in safetensors' spelling")

    @classmethod
    def of(cls, summary: Summary) -> Self:
        return cls(
            rank=summary.rank,
            alpha=summary.alpha,
            target_modules=list(summary.target_modules),
            modules=summary.modules,
            saved_modules=list(summary.saved_heads),
            parameters=summary.parameters,
            dtype=summary.dtype,
        )


class ValidationOut(BaseModel):
    valid: bool = Field(description="Whether the upload gate found no reason against the adapter")
    reasons: list[ReasonOut] = Field(description="All reasons, as the refusal of an upload lists them")
    warnings: list[str] = Field(
        description="Warnings for people: settings without effect, or reasons why answers may be worse than expected"
    )
    version: ValidatedVersionOut | None = Field(description="Summary of the version; null if it is not valid")
    size_bytes: int = Field(description="Size of both files in bytes")
    ignored: list[str] = Field(description="Names of the folder's files that are not part of a version")
    unchecked: list[str] = Field(description="Checks that only an upload makes, for people")
    base: UploadBaseOut

    @classmethod
    def of(cls, preflight: Preflight, base: ServedBase) -> Self:
        return cls(
            valid=preflight.summary is not None,
            reasons=[ReasonOut(**reason.shown()) for reason in preflight.reasons],
            warnings=list(preflight.warnings),
            version=ValidatedVersionOut.of(preflight.summary) if preflight.summary else None,
            size_bytes=preflight.size_bytes,
            ignored=list(preflight.ignored),
            unchecked=list(UNCHECKED),
            base=UploadBaseOut(name=base.name, chat_template_sha256=base.template_digest),
        )


@router.post(
    "/validate",
    summary="Check an adapter's config and the header of its weights before an upload; nothing is stored",
    responses=answers(400, 404, 408, 429),
    openapi_extra=_BODY,
)
async def validate_adapter(owner: Writer, gateway: GatewayDep, request: Request) -> ValidationOut:
    """The weights file ends after its header: 8 bytes of length, and the header itself."""
    caller, request_id = owner.caller, request.state.request_id
    limits, content_type = gateway.settings.limits, request.headers.get("content-type", "")
    async with gateway.limits.counted(caller, request_id):
        gateway.limits.refuse(caller)
        async with gateway.spool.folder(owner.tenant) as folder:
            received = await receive_head(request.stream(), content_type, folder, limits)
            options = read_preflight_options(received.options)
            preflight = await gateway.preflight.check(caller, request_id, owner.tenant, received.upload, options)
    return ValidationOut.of(preflight, gateway.base)
