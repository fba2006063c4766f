"""Cancellation on client disconnect, and answers as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.errors import LORAX_PATHS, lorax_body, openai_body, problem_of
from app.api.inference_headers import ignored_headers, limit_headers, load_headers
from app.domain.errors import TenoraError
from app.engine.port import EventStream
from app.observability.context import note_error
from app.services.serving.served import Served
from app.wiring.gateway import Gateway

Result = TypeVar("Result")


async def until_disconnect(receive: Receive, work: Awaitable[Result]) -> Result:
    """Run ``work`` in a task, and cancel it when the client disconnects. The request's body must have been read.

    Raises:
        ClientDisconnect: the client disconnected; ``work`` has ended.
        Exception: any error of ``work``.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _abandon(working)
        raise
    finally:
        watching.cancel()
    if working.done():
        return working.result()
    await _abandon(working)
    raise ClientDisconnect


async def _abandon(working: "asyncio.Future[Any]") -> None:
    """Cancel work that has lost its client, and close the stream that it may have returned: no response will."""
    working.cancel()
    await asyncio.wait((working,))
    if working.cancelled() or working.exception():
        return
    result = working.result()
    if isinstance(result, Served) and not isinstance(result.answer, dict):
        await result.answer.aclose()


def answer_response(served: Served, *, in_list: bool = False) -> Response:
    """Build the response to an inference request; ``in_list`` wraps a whole answer in an array."""
    headers = ({"x-tenora-adapter": served.version} if served.version else {}) | load_headers(served.load)
    headers |= limit_headers(served.rate_limits) | ignored_headers(served.ignored)
    if isinstance(served.answer, dict):
        # Faster than json.dumps (see docs/decisions/0029-request-path-overhead.md). JSON has no NaN: write null.
        content = to_json([served.answer] if in_list else served.answer, inf_nan_mode="null")
        return Response(content, headers=headers, media_type="application/json")
    return EventResponse(served.answer, headers, final_event=served.last_event)


def while_key_works(scope: Scope) -> contextlib.AbstractAsyncContextManager[None]:
    """Return a context manager that cancels its block once the caller's key stops working.

    Raises:
        Unauthenticated: the key stopped working.
    """
    state = scope.get("state", {})
    if (caller := state.get("caller")) is None:
        return contextlib.nullcontext()
    gateway: Gateway = state["gateway"]
    return gateway.key_watch.holding(caller.key_id, caller.session)


class EventResponse(Response):
    """Response that sends events as they arrive, and closes the stream however the response ends.

    Args:
        final_event: formats the final event of a stream that an error ends; default: the error in the route's envelope.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: EventStream[str],
        headers: Mapping[str, str],
        *,
        final_event: Callable[[TenoraError], str] | None = None,
    ) -> None:
        # Without x-accel-buffering, nginx would buffer the events.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events, self._final_event = events, final_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect):
                await until_disconnect(receive, self._send_events(scope, send))
        finally:
            await self._events.aclose()

    async def _send_events(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with while_key_works(scope):
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        except TenoraError as error:
            # Free the engine before sending the reason: the client may not read it.
            await self._events.aclose()
            note_error(problem_of(error).row.code)
            event = self._final_event(error) if self._final_event else _error_event(scope, error)
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _error_event(scope: Scope, error: TenoraError) -> str:
    problem = problem_of(error)
    if scope["path"] in LORAX_PATHS:
        return f"data:{json.dumps(lorax_body(problem))}\n\n"
    return f"data: {json.dumps(openai_body(problem))}\n\n"


async def _disconnected(receive: Receive) -> None:
    """Return once the client has disconnected. A failed connection counts as a disconnect."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
