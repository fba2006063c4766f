"""Answers of a replica: run a request in the engine and yield the frames of its answer."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine.port import Answer, EngineCall, Inference
from app.observability.context import CURRENT, RequestContext
from app.ray.error_words import CARRIED
from app.ray.load_meter import LoadMeter
from app.ray.wire import (
    WireError,
    decode_request,
    encode_error,
    encode_event,
    encode_hello,
    encode_load,
    encode_outcome,
    encode_whole,
)
from app.services.deletion.version_guard import VersionGuard

logger = logging.getLogger(__name__)

#: Outcomes of cut answers that are kept for their gateways.
_KEPT = 10_000


@dataclass(slots=True)
class _Running:
    call: EngineCall
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Answering:
    """Answers of one engine to requests from gateways.

    Args:
        guard: refuses versions that were deleted after the gateway had resolved them.
        seen: called with the version and the tenant of each request, for prefetching.
        node: id of this node.

    Attributes:
        load: measures the requests in flight for autoscaling.
    """

    def __init__(
        self, engine: Inference, guard: VersionGuard, seen: Callable[[VersionKey, str], None], *, node: str
    ) -> None:
        self._hello = encode_hello(node)
        self._engine, self._guard, self._seen = engine, guard, seen
        self._running: dict[str, _Running] = {}
        self._cut: dict[str, EngineCall] = {}
        self.load = LoadMeter()

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def frames(self, data: bytes) -> AsyncGenerator[bytes]:
        """Yield the frames of an answer. Closing the generator, or cancelling its task, aborts the request."""
        yield self._hello
        try:
            request = decode_request(data)
        except WireError as error:
            yield encode_error(EngineUnavailable(str(error)))
            return
        CURRENT.set(RequestContext(request.request_id, confidential=True, tenant=request.tenant or None))
        running = _Running(self._engine.begin(request))
        self._running[request.request_id] = running
        self.load.begin()
        if request.adapter:
            self._seen(request.adapter, request.tenant)
        ended = False
        try:
            # The request must have ended in the engine when this generator is closed, so the inner one is closed here.
            async with aclosing(self._frames(running.call)) as frames:
                async for frame in frames:
                    yield frame
            ended = True
        except Exception as error:
            ended = True
            if type(error) not in CARRIED:
                logger.exception("A request failed.")
            yield encode_outcome(running.call.outcome)
            yield encode_error(error)
        finally:
            self._end(running, cut=not ended)

    async def outcome(self, request_id: str) -> bytes:
        """Wait for the end of a request whose answer was cut, and return its outcome once; empty for other requests."""
        if running := self._running.get(request_id):
            await running.ended.wait()
        call = self._cut.pop(request_id, None)
        return encode_outcome(call.outcome) if call else b""

    async def _frames(self, call: EngineCall) -> AsyncGenerator[bytes]:
        answer: Answer | None = None
        whole = False
        try:
            async with self._guard.request(call.request.adapter):
                answer = await call.answer()
            if load := call.outcome.load:
                yield encode_load(load)
            if isinstance(answer, dict):
                yield encode_whole(answer)
            else:
                async for event in answer:
                    yield encode_event(event)
            whole = True
            yield encode_outcome(call.outcome)
        finally:
            if answer is not None and not isinstance(answer, dict) and not whole:
                await answer.aclose()

    def _end(self, running: _Running, *, cut: bool) -> None:
        request_id = running.call.request.request_id
        # A gateway may have sent the request again, as the greeting or an error did not reach it.
        if self._running.get(request_id) is running:
            del self._running[request_id]
        self.load.end()
        if cut:
            self._cut[request_id] = running.call
            if len(self._cut) > _KEPT:
                del self._cut[next(iter(self._cut))]
        running.ended.set()
