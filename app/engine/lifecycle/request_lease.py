"""Lease of a request in the engine: its sequences and its slot time, settled when the engine is done with it."""

import asyncio
import time
from typing import Self

from opentelemetry.util.types import AttributeValue

from app.domain.load_phases import LoadPhases
from app.engine.lifecycle.engine_session import EngineSession
from app.engine.lifecycle.sequence_leases import SequenceLeases
from app.engine.port import Answer, AnswerEvent, Endpoint, EngineRequest, Outcome, TokenUsage
from app.engine.vllm.output_log import OutputLog, RequestUsage
from app.engine.vllm.sse import Events
from app.observability.tracing import start_span


class RequestLease:
    """Lease of a request that was admitted to the engine.

    Args:
        arrived_at: monotonic time of the request's arrival in the queue.
        load: phases of the load that it waited for.
    """

    def __init__(
        self,
        request: EngineRequest,
        session: EngineSession,
        log: OutputLog,
        sequences: SequenceLeases,
        *,
        arrived_at: float,
        load: LoadPhases | None,
    ) -> None:
        self._request, self._session, self._log, self._sequences = request, session, log, sequences
        self._arrived_at, self._load, self._entered = arrived_at, load, time.monotonic()
        self._usage = RequestUsage(sequences)
        adapter = request.adapter
        self._end_of_slot = session.slot_time.begin(request.tenant, adapter.version_id) if adapter else None
        self._span = start_span("engine", _span_attributes(request))
        self._released = False
        self._token_usage: TokenUsage | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self._token_usage, self._load, self._usage.finite)

    async def answer(self) -> Answer:
        """Run the request, and release the lease at its end in the engine.

        Raises: as :meth:`app.engine.vllm.instance.EngineInstance.answer`.
        """
        # A client that reads slowly must not hold a slot.
        self._sequences.all_ended = self.release
        self._log.begin(self._request.request_id, self._usage)
        start_tag = self._session.queue.start_tag(self._request.request_id)
        try:
            answer = await self._session.instance.answer(self._request, self._usage, start_tag=start_tag)
        except BaseException:
            await self.abort()
            raise
        if isinstance(answer, Events):
            return LeasedEvents(answer, self, self._usage)
        self.release()
        return answer

    def release(self) -> None:
        """Settle the cost of the request after its end in the engine. Idempotent."""
        if self._released:
            return
        self._released = True
        self._log.end(self._request.request_id)
        slot_s = self._end_of_slot() if self._end_of_slot else 0.0
        self._token_usage = _token_usage(self._usage, self._arrived_at, self._load, slot_s)
        self._span.set_attributes(_token_attributes(self._usage, self._entered))
        self._span.end()
        self._sequences.release(self._usage)

    async def abort(self, events: Events | None = None) -> None:
        """Abort what still runs, and release the slot only then: the engine must never see one adapter too many."""
        try:
            await asyncio.shield(self._session.instance.abort(self._request))
            if events:
                await events.aclose()
        finally:
            self.release()


class LeasedEvents:
    """Stream that holds its request's lease until the engine is done or the stream is closed, started or not.

    This is not a generator function, because the ``finally`` of a generator that was never started does not run.
    """

    def __init__(self, events: Events, lease: RequestLease, usage: RequestUsage) -> None:
        self._events, self._lease, self._usage = events, lease, usage
        self._reported = 0
        self._open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        if not self._open:
            raise StopAsyncIteration
        try:
            text = await self._events.next()
        except BaseException:
            await self.aclose()
            raise
        if text is None:
            self._open = False
            self._lease.release()
            raise StopAsyncIteration
        reported, self._reported = self._reported, self._usage.output_tokens
        return AnswerEvent(text, self._reported - reported)

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            await self._lease.abort(self._events)


def _token_usage(usage: RequestUsage, arrived_at: float, load: LoadPhases | None, slot_s: float) -> TokenUsage | None:
    if usage.first_at is None:
        return None
    return TokenUsage(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        ttft_s=usage.first_at - arrived_at,
        slot_s=slot_s,
        load_s=load.total_s if load else None,
    )


def _span_attributes(request: EngineRequest) -> dict[str, AttributeValue]:
    """Span attributes of a request, in the names of OpenTelemetry's GenAI conventions."""
    return {
        "gen_ai.operation.name": "chat" if request.endpoint is Endpoint.CHAT else "text_completion",
        "gen_ai.provider.name": "tenora",
        "gen_ai.request.model": request.model,
        "gen_ai.request.stream": bool(request.body.get("stream")),
        "tenora.version_id": request.adapter.version_id if request.adapter else 0,
    }


def _token_attributes(usage: RequestUsage, began: float) -> dict[str, AttributeValue]:
    """Span attributes of its tokens. The time to the first one counts from its entry into the engine."""
    if usage.first_at is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.response.time_to_first_chunk": usage.first_at - began,
    }
