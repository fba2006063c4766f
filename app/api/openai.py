"""OpenAI's inference routes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.auth import inference_caller
from app.api.inference_headers import deadline_of
from app.api.inference_schemas import CHAT, COMPLETION
from app.api.json_bodies import read_object
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response, until_disconnect
from app.engine.port import Endpoint
from app.wiring.gateway import Gateway

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=PlainRoute)


@router.post("/completions", response_model=None, summary="Continue a text", openapi_extra=COMPLETION)
async def completions(request: Request) -> Response:
    return await _answer(request, Endpoint.COMPLETIONS)


@router.post("/chat/completions", response_model=None, summary="Answer a conversation", openapi_extra=CHAT)
async def chat_completions(request: Request) -> Response:
    return await _answer(request, Endpoint.CHAT)


async def _answer(request: Request, endpoint: Endpoint) -> Response:
    caller = await inference_caller(request)
    gateway: Gateway = request.state.gateway
    request_id = request.state.request_id
    async with gateway.limits.counted(caller, request_id):
        deadline_s, body = deadline_of(request), await read_object(request, caller)
        work = gateway.inference.complete(caller, request_id, endpoint, body, deadline_s=deadline_s)
        async with gateway.key_watch.holding(caller.key_id):
            served = await until_disconnect(request.receive, work)
    return answer_response(served)
