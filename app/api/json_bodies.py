"""JSON bodies: authenticate before parsing, and parse large bodies in a thread."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, request_response

from app.api.auth import authenticate
from app.domain.access import Caller
from app.services.bodies.parsing import SMALL_BYTES, check_amount
from app.wiring.gateway import Gateway


async def read_object(request: Request, caller: Caller) -> dict[str, Any]:
    """Parse an inference request's body as a JSON object, after checking the caller's limits.

    Raises:
        LimitExceeded, InvalidRequest, TooLarge, Busy
    """
    gateway: Gateway = request.state.gateway
    raw = await request.body()
    return await gateway.bodies.parse(raw, share=caller.tenant_slug or "", before=lambda: gateway.limits.refuse(caller))


def install(app: FastAPI) -> None:
    """Replace JSON parsing in FastAPI's routes.

    FastAPI parses a body before it authenticates the caller, and on the event loop.
    """
    for route in app.routes:
        if isinstance(route, APIRoute) and route.body_field is not None:
            route.app = request_response(_handler(route))


def _handler(route: APIRoute) -> Callable[[Request], Awaitable[Response]]:
    handle = route.get_route_handler()

    async def handler(request: Request) -> Response:
        await authenticate(request)
        return await handle(_JsonRequest(request.scope, request.receive))

    return handler


class _JsonRequest(Request):
    async def json(self) -> Any:
        raw = await self.body()
        if len(raw) <= SMALL_BYTES:
            return await super().json()
        gateway: Gateway = self.state.gateway
        caller: Caller = self.state.caller
        return await gateway.bodies.in_turn(lambda: _parse_large(raw), share=caller.tenant_slug or "")


def _parse_large(raw: bytes) -> Any:
    # FastAPI handles every error that is raised here.
    check_amount(raw)
    return json.loads(raw)
