"""Lease of a request in the engine: its slot time and its sequences, settled when the engine is done with it."""

import asyncio
import time
from collections.abc import Callable
from typing import Self

from opentelemetry.util.types import AttributeValue

from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.sequence_turns import Sequences
from app.engine.port import Endpoint, EngineRequest
from app.engine.vllm.output_log import Usage
from app.engine.vllm.sse import Events
from app.observability.tracing import start_span


class RequestLease:
    """Leases of a request that is in the engine.

    Args:
        used: receives the request's slot-seconds and returns its token usage.
    """

    def __init__(
        self,
        life: EngineSession,
        request: EngineRequest,
        sequences: Sequences,
        used: Callable[[float], Usage],
    ) -> None:
        self._life, self._request, self._sequences, self._used = life, request, sequences, used
        self._began = time.monotonic()
        adapter = request.adapter
        self._end_of_slot = life.slot_time.begin(request.tenant, adapter.version_id) if adapter else None
        self._span = start_span("engine", _span_attributes(request))
        self._released = False

    def release(self) -> None:
        """Settle the cost of the request after its end in the engine. Idempotent."""
        if self._released:
            return
        self._released = True
        usage = self._used(self._end_of_slot() if self._end_of_slot else 0.0)
        self._span.set_attributes(_token_attributes(usage, self._began))
        self._span.end()
        self._sequences.release(usage)

    async def abort(self, events: Events | None = None) -> None:
        """Abort what still runs, and release the slot only then: the engine must never see one adapter too many."""
        try:
            await asyncio.shield(self._life.instance.abort(self._request))
            if events:
                await events.aclose()
        finally:
            self.release()


class LeasedEvents:
    """Stream that holds its request's lease until the engine is done or the stream is closed, started or not.

    This is not a generator function, because the ``finally`` of a generator that was never started does not run.
    """

    def __init__(self, events: Events, held: RequestLease) -> None:
        self._events, self._held = events, held
        self._open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if not self._open:
            raise StopAsyncIteration
        try:
            event = await self._events.next()
        except BaseException:
            await self.aclose()
            raise
        if event is None:
            self._open = False
            self._held.release()
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            await self._held.abort(self._events)


def _span_attributes(request: EngineRequest) -> dict[str, AttributeValue]:
    """Span attributes of a request, in the names of OpenTelemetry's GenAI conventions."""
    return {
        "gen_ai.operation.name": "chat" if request.endpoint is Endpoint.CHAT else "text_completion",
        "gen_ai.provider.name": "tenora",
        "gen_ai.request.model": request.model,
        "gen_ai.request.stream": bool(request.body.get("stream")),
        "tenora.version_id": request.adapter.version_id if request.adapter else 0,
    }


def _token_attributes(usage: Usage, began: float) -> dict[str, AttributeValue]:
    """Span attributes of its tokens. The time to the first one counts from its entry into the engine."""
    if usage.first_at is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.response.time_to_first_chunk": usage.first_at - began,
    }
