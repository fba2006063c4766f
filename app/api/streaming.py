"""Work that ends when the client goes away, and answers sent as server-sent events."""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from app.engine.base import EventStream
from app.services.inference import Served

Result = TypeVar("Result")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work``, but cancel it as soon as the client is gone. The request's body must have been read.

    Raises:
        ClientDisconnect: after ``work`` has ended.
        Exception: whatever ``work`` raises.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    raise ClientDisconnect


def answer_response(served: Served, *, in_list: bool = False) -> Response:
    """The answer as it goes out; ``in_list`` wraps a whole one in an array."""
    headers = {"x-tenora-adapter": served.version} if served.version else {}
    if isinstance(served.answer, dict):
        return JSONResponse([served.answer] if in_list else served.answer, headers=headers)
    return EventResponse(served.answer, headers)


class EventResponse(Response):
    """Sends an answer's events as they come; the stream is closed however the response ends."""

    media_type = "text/event-stream"

    def __init__(self, events: EventStream, headers: Mapping[str, str]) -> None:
        # x-accel-buffering: nginx would hold events back.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        try:
            with contextlib.suppress(ClientDisconnect):
                await until_disconnect(receive, self._send_events(send))
        finally:
            await self._events.aclose()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
