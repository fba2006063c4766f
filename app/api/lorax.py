"""LoRAX's inference routes. The published lorax-client posts to ``/`` only."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.inference_calls import Call, run
from app.api.inference_schemas import COMPAT_GENERATE, GENERATE, GENERATE_STREAM
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response
from app.services.serving.served import Served

router = APIRouter(tags=["lorax"], route_class=PlainRoute)


@router.post("/generate", response_model=None, summary="Generate a text", openapi_extra=GENERATE)
async def generate(request: Request) -> Response:
    """The answer comes as a whole. Errors have LoRAX's envelope."""
    return answer_response(await _served(request, stream=False))


@router.post(
    "/generate_stream",
    response_model=None,
    response_class=Response,
    summary="Generate a text, token by token",
    openapi_extra=GENERATE_STREAM,
)
async def generate_stream(request: Request) -> Response:
    """One event comes for each token. The last one has the whole text."""
    return answer_response(await _served(request, stream=True))


@router.post(
    "/",
    response_model=None,
    summary="Generate a text, streamed if the body's `stream` is true",
    openapi_extra=COMPAT_GENERATE,
)
async def generate_compat(request: Request) -> Response:
    # LoRAX wraps a non-streamed answer in a list on this route, and its client unwraps it.
    """The published lorax-client uses this route. A whole answer comes in an array of one element."""
    return answer_response(await _served(request, stream=None), in_list=True)


async def _served(request: Request, *, stream: bool | None) -> Served:
    async def generate(call: Call) -> Served:
        inference = call.gateway.inference
        return await inference.generate(
            call.caller, call.request_id, call.body, stream=stream, deadline_s=call.deadline_s
        )

    return await run(request, generate)
