"""One call of an inference route: authenticate, count, parse, run, and cancel the work with its client."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from app.api.auth import inference_caller
from app.api.inference_headers import deadline_of
from app.api.json_bodies import read_object
from app.api.streaming import until_disconnect
from app.domain.access import Caller
from app.services.serving.served import Served
from app.wiring.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Call:
    """An authenticated request with its parsed body.

    Attributes:
        deadline_s: seconds within which the first token must be ready; None: no deadline.
    """

    gateway: Gateway
    caller: Caller
    request_id: str
    body: dict[str, Any]
    deadline_s: float | None


async def run(request: Request, work: Callable[[Call], Awaitable[Served]]) -> Served:
    """Run the work of a request. It is cancelled when the client disconnects, or when its key stops working.

    Raises:
        ClientDisconnect: the client disconnected.
        Unauthenticated, Forbidden, LimitExceeded, InvalidRequest, TooLarge, Busy
        Exception: any error of ``work``.
    """
    caller = await inference_caller(request)
    gateway: Gateway = request.state.gateway
    request_id = request.state.request_id
    async with gateway.limits.counted(caller, request_id):
        deadline_s, body = deadline_of(request), await read_object(request, caller)
        call = Call(gateway, caller, request_id, body, deadline_s)
        async with gateway.key_watch.holding(caller.key_id, caller.session):
            return await until_disconnect(request.receive, work(call))
