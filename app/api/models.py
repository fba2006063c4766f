"""OpenAI's model list: the base, the caller's adapters, and shared adapters as ``owner/adapter``."""

from typing import Any

from fastapi import APIRouter

from app.api.auth import GatewayDep, InferenceCaller
from app.services.serving.models import Model

router = APIRouter(prefix="/v1/models", tags=["OpenAI"])


@router.get("/", include_in_schema=False)
@router.get("", summary="List the base model, the caller's adapters and shared adapters")
async def list_models(gateway: GatewayDep, caller: InferenceCaller) -> dict[str, Any]:
    return {"object": "list", "data": [card(model) for model in await gateway.models.list_models(caller)]}


# `:path`, because a base model's name may contain a slash.
@router.get("/{model_id:path}", summary="Show a model by any name that `model` accepts")
async def get_model(gateway: GatewayDep, caller: InferenceCaller, model_id: str) -> dict[str, Any]:
    return card(await gateway.models.get_model(caller, model_id))


def card(model: Model) -> dict[str, Any]:
    """Build OpenAI's model object with vLLM's ``root`` and ``parent``. It never exposes a path on disk."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner,
        "root": model.root,
        "parent": model.parent,
    }
