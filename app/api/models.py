"""OpenAI's model list: the base, the caller's adapters, and shared adapters as ``owner/adapter``."""

from typing import Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.auth import GatewayDep, InferenceCaller
from app.services.serving.models import Model

router = APIRouter(prefix="/v1/models", tags=["openai"])


class ModelOut(BaseModel):
    """OpenAI's model object with vLLM's `root` and `parent`. It never exposes a path on disk."""

    id: str = Field(description="Value of `model` in requests")
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds")
    owned_by: str = Field(description="Slug of the tenant; `tenora` for the base model")
    root: str = Field(description="Version that the name stands for now")
    parent: str | None = Field(description="Name of the base model; null for the base model itself")

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(id=model.id, created=model.created, owned_by=model.owner, root=model.root, parent=model.parent)


class ModelListOut(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]


@router.get("/", include_in_schema=False)
@router.get("", summary="List the base model, the caller's adapters and shared adapters")
async def list_models(gateway: GatewayDep, caller: InferenceCaller) -> ModelListOut:
    """Adapters are listed if they have the alias `default`. A restricted key sees the models that it may use."""
    return ModelListOut(data=[ModelOut.of(model) for model in await gateway.models.list_models(caller)])


# `:path`, because a base model's name may contain a slash.
@router.get("/{model_id:path}", summary="Show a model by any name that `model` accepts")
async def get_model(gateway: GatewayDep, caller: InferenceCaller, model_id: str) -> ModelOut:
    """The answer's `root` is the version that the name stands for now."""
    return ModelOut.of(await gateway.models.get_model(caller, model_id))
