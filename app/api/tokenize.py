"""Routes of the tokenizer."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.inference_calls import Call, run
from app.api.inference_schemas import DETOKENIZE, TOKENIZE
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response
from app.services.serving.served import Served

router = APIRouter(prefix="/v1", tags=["tokens"], route_class=PlainRoute)


@router.post("/tokenize", response_model=None, summary="Tokenize a text or a conversation", openapi_extra=TOKENIZE)
async def tokenize(request: Request) -> Response:
    """A conversation is rendered with the chat template of the named version first. The engine does no work."""
    return answer_response(await run(request, _tokenize))


@router.post("/detokenize", response_model=None, summary="Decode tokens to a text", openapi_extra=DETOKENIZE)
async def detokenize(request: Request) -> Response:
    """Special tokens are part of the text. The engine does no work."""
    return answer_response(await run(request, _detokenize))


async def _tokenize(call: Call) -> Served:
    return await call.gateway.tokenization.tokenize(call.caller, call.request_id, call.body)


async def _detokenize(call: Call) -> Served:
    return await call.gateway.tokenization.detokenize(call.caller, call.request_id, call.body)
