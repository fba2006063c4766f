"""OpenAI's routes of completions and chats."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.inference_calls import Call, run
from app.api.inference_schemas import CHAT, COMPLETION
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response
from app.engine.port import Endpoint
from app.services.serving.served import Served

router = APIRouter(prefix="/v1", tags=["openai"], route_class=PlainRoute)


@router.post("/completions", response_model=None, summary="Continue a text", openapi_extra=COMPLETION)
async def create_completion(request: Request) -> Response:
    """Works with the published openai SDK. A request with `stream` gets events, each with more of the text."""
    return await _answer(request, Endpoint.COMPLETIONS)


@router.post("/chat/completions", response_model=None, summary="Answer a conversation", openapi_extra=CHAT)
async def create_chat_completion(request: Request) -> Response:
    """Works with the published openai SDK.

    The chat template is the version's, or else the base model's. A request with `stream` gets events.
    """
    return await _answer(request, Endpoint.CHAT)


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    async def complete(call: Call) -> Served:
        inference = call.gateway.inference
        return await inference.complete(call.caller, call.request_id, endpoint, call.body, deadline_s=call.deadline_s)

    return answer_response(await run(request, complete))
