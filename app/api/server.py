"""``GET /v1/server``: release, base, device, caps and features of the server, for any valid key."""

from typing import Self

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from app.api.auth import GatewayDep, authenticate
from app.api.schemas import answers
from app.services.operations.server_facts import ServerFacts

router = APIRouter(tags=["operations"], dependencies=[Depends(authenticate)])


class ServedBaseOut(BaseModel):
    name: str = Field(description="Value of `model` in requests to the base")
    digest: str = Field(description="`sha256:` and 64 hex digits, over its config and the index of its weights")


class UploadCapsOut(BaseModel):
    """Caps of what is published. Sizes are in bytes."""

    config_bytes: int = Field(description="Maximum size of `adapter_config.json`")
    weights_bytes: int = Field(description="Maximum size of `adapter_model.safetensors`")
    header_bytes: int = Field(description="Maximum size of the header of `adapter_model.safetensors`")
    part_bytes: int = Field(description="Maximum size of a part of an upload in parts")
    open_uploads: int = Field(description="Maximum number of unfinished uploads in parts of one tenant")
    max_lora_rank: int = Field(description="Largest rank of an adapter")


class ServerFactsOut(BaseModel):
    version: str = Field(description="Release of the server", examples=["0.2.0"])
    base: ServedBaseOut
    device: str = Field(description="Device of the engine: `cpu`, or the name of the GPU; empty: unknown")
    context: int = Field(description="Maximum tokens of a request, prompt and answer together")
    uploads: UploadCapsOut
    features: list[str] = Field(
        description="Optional features that are on: `chat` (chats with the base), `direct_uploads` (parts go straight "
        "to the bucket), `import_hf`, `import_s3`, `lora_head` (adapters of the output head), `validate`. Ignore "
        "unknown ones."
    )
    currency: str = Field(description="Currency of prices and budgets (ISO 4217)")

    @classmethod
    def of(cls, facts: ServerFacts) -> Self:
        limits = facts.limits
        return cls(
            version=facts.release,
            base=ServedBaseOut(name=facts.base.name, digest=f"sha256:{facts.base.digest}"),
            device=facts.device,
            context=facts.base.context,
            uploads=UploadCapsOut(
                config_bytes=limits.config_bytes,
                weights_bytes=limits.weights_bytes,
                header_bytes=facts.header_bytes,
                part_bytes=facts.part_bytes,
                open_uploads=limits.open_uploads,
                max_lora_rank=facts.max_lora_rank,
            ),
            features=list(facts.features),
            currency=facts.currency,
        )


@router.get("/v1/server", summary="Show the server's release, base, device, caps and features", responses=answers())
async def get_server(gateway: GatewayDep) -> ServerFactsOut:
    """A client finds here what it may send, and whether the server is older than itself."""
    return ServerFactsOut.of(gateway.server_facts.facts())
