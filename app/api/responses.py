"""OpenAI's Responses, without state: every request brings its whole conversation, and nothing of it is kept."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.auth import InferenceCaller
from app.api.inference_calls import Call, run
from app.api.inference_schemas import RESPONSES
from app.api.plain_route import PlainRoute
from app.api.streaming import answer_response
from app.domain.errors import NotFound
from app.services.bodies.responses import responses_request
from app.services.serving.served import Served

router = APIRouter(prefix="/v1", tags=["openai"], route_class=PlainRoute)

#: Routes of stored responses, of which there are none.
stored = APIRouter(prefix="/v1/responses", tags=["openai"])


@router.post("/responses", response_model=None, summary="Answer a list of items", openapi_extra=RESPONSES)
async def create_response(request: Request) -> Response:
    """Works with the published openai SDK. Nothing is stored, so each request brings its whole conversation."""
    return answer_response(await run(request, _respond))


async def _respond(call: Call) -> Served:
    inference = call.gateway.inference
    return await inference.translate(
        call.caller, call.request_id, call.body, responses_request, deadline_s=call.deadline_s
    )


@stored.get("/{response_id}", response_model=None, status_code=404, summary="Refuse: no response is stored")
async def get_response(_: InferenceCaller, response_id: str) -> None:
    """Every request gets 404, because this server stores no responses. Keep the answer of POST /v1/responses."""
    raise NotFound(
        f"There is no response {response_id[:80]!r}: this server stores none. Keep the answer of POST /v1/responses.",
        param="response_id",
    )
