"""OpenAI's list of models: the base and the caller's own adapters."""

from typing import Any

from fastapi import APIRouter

from app.api.auth import InferenceCaller, ProcessDep
from app.services.inference import Model

router = APIRouter(prefix="/v1/models", tags=["OpenAI"])


@router.get("", summary="The base model and the caller's adapters")
async def list_models(process: ProcessDep, caller: InferenceCaller) -> dict[str, Any]:
    return {"object": "list", "data": [card(model) for model in await process.inference.models(caller)]}


# A base model's name may have a slash.
@router.get("/{model_id:path}", summary="One model, by any name that `model` takes")
async def get_model(process: ProcessDep, caller: InferenceCaller, model_id: str) -> dict[str, Any]:
    return card(await process.inference.model(caller, model_id))


def card(model: Model) -> dict[str, Any]:
    """OpenAI's model object, with vLLM's ``root`` and ``parent``; never a path."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owner,
        "root": model.root,
        "parent": model.parent,
    }
