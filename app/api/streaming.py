"""Work that ends when the client goes away, and answers sent as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.errors import LORAX_PATHS, lorax_body, openai_body, problem_of
from app.api.inference_headers import ignored_headers, limit_headers, load_headers
from app.api.middleware import SEND_BODY
from app.domain.errors import TenoraError
from app.engine.port import EventStream
from app.observability.context import note_error
from app.services.serving.inference import Served
from app.wiring.container import Container

Result = TypeVar("Result")


async def until_disconnect(receive: Receive, work: Awaitable[Result]) -> Result:
    """Run ``work``, but cancel it as soon as the client is gone. The request's body must have been read.

    It runs in the caller's own task, which is cancelled the way :func:`asyncio.timeout` does it: a task of its own
    would cost a request as much as its authentication.

    Raises:
        ClientDisconnect: after ``work`` has ended.
        Exception: whatever ``work`` raises.
    """
    watch = _Watch(receive)
    try:
        result = await work
    except BaseException:
        if watch.close():
            raise ClientDisconnect from None
        raise
    if watch.close():
        # It went away in the very moment of the answer, and nobody else will ever close that.
        if isinstance(result, Served) and not isinstance(result.answer, dict):
            await result.answer.aclose()
        raise ClientDisconnect
    return result


class _Watch:
    """Cancels the task that made it if the client goes away before :meth:`close`."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("requests are answered in tasks")
        self._task, self._cancelled_before = task, task.cancelling()
        self._open, self._gone = True, False
        self._watching = asyncio.create_task(_disconnected(receive))
        self._watching.add_done_callback(self._end)

    def close(self) -> bool:
        """Stop waiting; true if the client went away, and nobody else wants the task to end."""
        self._open = False
        self._watching.cancel()
        return self._gone and self._task.uncancel() <= self._cancelled_before

    def _end(self, watching: "asyncio.Future[None]") -> None:
        if watching.cancelled():
            return
        watching.exception()  # a connection that fails is gone too
        # Called a moment after that: the work may have ended in between.
        if self._open:
            self._gone = True
            self._task.cancel()


def answer_response(served: Served, *, in_list: bool = False) -> Response:
    """The answer as it goes out; ``in_list`` wraps a whole one in an array."""
    headers = ({"x-tenora-adapter": served.version} if served.version else {}) | load_headers(served.load)
    headers |= limit_headers(served.standing) | ignored_headers(served.ignored)
    if isinstance(served.answer, dict):
        # In a sixth of the time of json.dumps; what is no number is null, as JSON has no word for it.
        content = to_json([served.answer] if in_list else served.answer, inf_nan_mode="null")
        return Response(content, headers=headers, media_type="application/json")
    return EventResponse(served.answer, headers)


def while_key_works(scope: Scope) -> contextlib.AbstractAsyncContextManager[None]:
    """A block that is cancelled once the key of the request's caller does not work any more.

    Raises:
        Unauthenticated: it does not.
    """
    state = scope.get("state", {})
    if (caller := state.get("caller")) is None:
        return contextlib.nullcontext()
    process: Container = state["process"]
    return process.key_watch.holding(caller.key_id)


class EventResponse(Response):
    """Sends an answer's events as they come; the stream is closed however the response ends.

    Args:
        last_words: the event for an error that ends the stream; default: the error in its route's envelope.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: EventStream,
        headers: Mapping[str, str],
        *,
        last_words: Callable[[TenoraError], str] | None = None,
    ) -> None:
        # x-accel-buffering: nginx would hold events back.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events, self._last_words = events, last_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect):
                send_body = scope.get("state", {}).get(SEND_BODY, send)
                # A task of its own: in the request's, every event would wake two dozen coroutines around this one.
                sending = asyncio.create_task(self._send_events(scope, send, send_body))
                await until_disconnect(receive, sending)
        finally:
            await self._events.aclose()

    async def _send_events(self, scope: Scope, send: Send, send_body: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with while_key_works(scope):
                async for event in self._events:
                    await send_body({"type": "http.response.body", "body": event.encode(), "more_body": True})
        except TenoraError as error:
            # The engine is free before a reader who may not read is told why.
            await self._events.aclose()
            note_error(problem_of(error).row.code)
            words = self._last_words(error) if self._last_words else _error_event(scope, error)
            await send_body({"type": "http.response.body", "body": words.encode(), "more_body": True})
        await send_body({"type": "http.response.body", "body": b"", "more_body": False})


def _error_event(scope: Scope, error: TenoraError) -> str:
    problem = problem_of(error)
    if scope["path"] in LORAX_PATHS:
        return f"data:{json.dumps(lorax_body(problem))}\n\n"
    return f"data: {json.dumps(openai_body(problem))}\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
