"""OpenAI's inference routes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.auth import InferenceCaller, ProcessDep
from app.api.inference_headers import DOCUMENTED, deadline_of
from app.api.streaming import answer_response, until_disconnect
from app.engine.base import Endpoint
from app.process import Process
from app.registry import Caller
from app.services.bodies.parsing import parse_object

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/completions", response_model=None, summary="Continue a text", openapi_extra=DOCUMENTED)
async def completions(request: Request, process: ProcessDep, caller: InferenceCaller) -> Response:
    return await _answer(request, process, caller, Endpoint.COMPLETIONS)


@router.post("/chat/completions", response_model=None, summary="Answer a conversation", openapi_extra=DOCUMENTED)
async def chat_completions(request: Request, process: ProcessDep, caller: InferenceCaller) -> Response:
    return await _answer(request, process, caller, Endpoint.CHAT)


async def _answer(request: Request, process: Process, caller: Caller, endpoint: Endpoint) -> Response:
    deadline_s, body = deadline_of(request), parse_object(await request.body())
    work = process.inference.complete(caller, request.state.request_id, endpoint, body, deadline_s=deadline_s)
    return answer_response(await until_disconnect(request.receive, work))
