"""Anthropic's routes of messages."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.inference_calls import Call, run
from app.api.inference_schemas import COUNT_TOKENS, MESSAGES
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response
from app.services.bodies.anthropic import messages_request
from app.services.serving.served import Served

router = APIRouter(prefix="/v1/messages", tags=["anthropic"], route_class=PlainRoute)


@router.post("", response_model=None, summary="Answer a conversation", openapi_extra=MESSAGES)
async def create_message(request: Request) -> Response:
    """Works with the published anthropic SDK. A request with `stream` gets Anthropic's events."""
    return answer_response(await run(request, _answer))


@router.post("/count_tokens", response_model=None, summary="Count the tokens of a prompt", openapi_extra=COUNT_TOKENS)
async def count_message_tokens(request: Request) -> Response:
    """The number is that of the prompt as the version's chat template renders it. The engine does no work."""
    return answer_response(await run(request, _count))


async def _answer(call: Call) -> Served:
    inference = call.gateway.inference
    return await inference.translate(
        call.caller, call.request_id, call.body, messages_request, deadline_s=call.deadline_s
    )


async def _count(call: Call) -> Served:
    return await call.gateway.tokenization.count_message_tokens(call.caller, call.request_id, call.body)
