"""Usage meter: one record for each request that reaches the engine, durable before its answer's end is sent."""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from app.domain.access import Caller
from app.domain.batches import LineResult
from app.domain.clock import Clock, utc_now
from app.domain.errors import ROWS, EngineUnavailable, RegistryUnavailable, Unauthenticated, row_of
from app.domain.usage import MAX_REASON, UsageEntry, UsageRecord
from app.engine.error_event import error_event
from app.engine.port import Answer, AnswerEvent, EngineCall, EventStream, TokenUsage
from app.engine.request_size import sequence_count
from app.services.limits.service import LimitService, Permit
from app.services.usage.ledger import Ledger

logger = logging.getLogger(__name__)

_OK = 200
#: nginx's status for a client that closed the connection before it had its answer.
_CLIENT_GONE = 499
_SERVER_FAULT = 500
_KEY_ENDED = ROWS[Unauthenticated].status
_ENGINE_STOPPED = ROWS[EngineUnavailable].status

_DONE = "data: [DONE]"
_ERROR_PREFIX = 'data: {"error"'
_NO_TOKEN = (_DONE, _ERROR_PREFIX)
# Quotes inside a JSON string are escaped, so this can only match the key and its value.
_FINISHING = '"finish_reason":"'
_FINISHED = re.compile(_FINISHING + '([^"]*)')
# Finish reasons of sequences that the engine aborted.
_UNFINISHED = (None, "error", "abort")


@dataclass(frozen=True, slots=True)
class _Entry:
    """Facts about a request that are known before its answer, and its call."""

    call: EngineCall
    caller: Caller
    at: datetime
    started: float
    permit: Permit


class Meter:
    """Measures the usage of requests. It does not record prompts or answers.

    Args:
        ended: returns whether a key's requests were ended because the key is no longer valid.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: LimitService,
        *,
        ended: Callable[[str], bool] = lambda _: False,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._limits = ledger, limits
        self._ended, self._clock, self._monotonic = ended, clock, monotonic
        self._settling: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[UsageRecord], None]] = []

    def watch(self, listener: Callable[[UsageRecord], None]) -> None:
        """Register a listener for all usage records, for the life of the process. It must neither block nor raise."""
        self._listeners.append(listener)

    async def metered(
        self, caller: Caller, call: EngineCall, work: Awaitable[Answer], *, permit: Permit
    ) -> dict[str, Any] | EventStream[str]:
        """Await ``work``, the answer of a call, and record its usage once the answer has ended.

        Args:
            permit: the request's reservation on its caller's limits; it is settled with the record.

        Raises:
            RegistryUnavailable: the record could not be written anywhere, so the answer is withheld.
            Exception: any error of ``work``.
        """
        entry = _Entry(call, caller, self._clock(), self._monotonic(), permit)
        try:
            answer = await work
        except BaseException as error:
            self.settle_later(entry, _status_of(error) if isinstance(error, Exception) else self.cut_off(entry))
            raise
        if not isinstance(answer, dict):
            return _MeteredEvents(answer, self, entry, sequence_count(call.request.body))
        reasons = [choice.get("finish_reason") for choice in answer.get("choices", ())]
        whole = not any(reason in _UNFINISHED for reason in reasons)
        await self.settle(entry, _OK if whole else _ENGINE_STOPPED, reasons[-1] if reasons else None)
        return answer

    async def metered_line(
        self,
        caller: Caller,
        call: EngineCall,
        *,
        permit: Permit,
        result_of: Callable[[dict[str, Any]], LineResult],
    ) -> LineResult:
        """Run the call of a line of a batch, and make its usage and its result durable together.

        An attempt without a whole answer leaves no record and costs nothing, because the line will run again.

        Raises:
            EngineUnavailable: the engine stopped while it answered.
            RegistryUnavailable: the record could not be written anywhere.
            Exception: any error of the call.
        """
        entry = _Entry(call, caller, self._clock(), self._monotonic(), permit)
        try:
            answer = _complete(await call.answer())
            result = result_of(answer)
        except BaseException:
            self._limits.settle(permit, 0, 0)
            raise
        usage = call.outcome.usage or TokenUsage(0, 0, 0, ttft_s=None)
        reason = next((choice.get("finish_reason") for choice in reversed(answer.get("choices", ()))), None)
        task = asyncio.create_task(self._settle(entry, usage, _OK, reason, result))
        self._settling.add(task)
        task.add_done_callback(self._settled)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # The runner that ends this line must know that its entry is complete.
            await asyncio.wait((task,))
            raise
        return result

    async def settle(
        self, entry: _Entry, status: int, finish_reason: str | None = None, *, streamed_tokens: int = 0
    ) -> None:
        """Record the usage of an ended request. A request that never reached the engine has no record.

        Args:
            streamed_tokens: output tokens of the events that were read. They and the prompt are charged if the call
                has no final outcome, as when its stream broke together with a remote engine.

        Raises:
            RegistryUnavailable
        """
        # The caller may be cancelled, but the record must be written.
        await asyncio.shield(self.settle_later(entry, status, finish_reason, streamed_tokens=streamed_tokens))

    def settle_later(
        self, entry: _Entry, status: int, finish_reason: str | None = None, *, streamed_tokens: int = 0
    ) -> "asyncio.Task[None]":
        """Start ``settle`` in the background, for a request whose client has nothing left to wait for."""
        usage = entry.call.outcome.usage
        if usage is None and streamed_tokens:
            prompt_tokens = sum(map(len, entry.call.request.token_ids or ()))
            usage = TokenUsage(prompt_tokens, 0, streamed_tokens, ttft_s=None)
        task = asyncio.create_task(self._settle(entry, usage, status, finish_reason))
        self._settling.add(task)
        task.add_done_callback(self._settled)
        return task

    def cut_off(self, entry: _Entry) -> int:
        """Return the status of a request that was aborted before its end."""
        return _KEY_ENDED if self._ended(entry.caller.key_id) else _CLIENT_GONE

    async def close(self) -> None:
        """Wait until all ended requests are recorded."""
        if self._settling:
            await asyncio.wait(self._settling)

    def _settled(self, task: "asyncio.Task[None]") -> None:
        self._settling.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("The usage of a request was not recorded: %s", error)

    async def _settle(
        self,
        entry: _Entry,
        usage: TokenUsage | None,
        status: int,
        finish_reason: str | None,
        result: LineResult | None = None,
    ) -> None:
        if usage is None:
            self._limits.settle(entry.permit, 0, 0)
            return
        request, caller = entry.call.request, entry.caller
        cost = entry.permit.price.cost(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        record = UsageRecord(
            request_id=request.request_id,
            at=entry.at,
            tenant_id=caller.tenant_id or 0,
            key_id=caller.key_id,
            version_id=request.adapter.version_id if request.adapter else None,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            ttft_s=usage.ttft_s,
            duration_s=self._monotonic() - entry.started,
            load_s=usage.load_s,
            finish_reason=finish_reason[:MAX_REASON] if finish_reason else None,
            status=status,
            cost=cost,
            slot_s=usage.slot_s,
        )
        for listener in self._listeners:
            listener(record)
        tokens = usage.prompt_tokens + usage.output_tokens
        if result is not None:
            await self._keep_line(entry, UsageEntry(record, result, entry.permit.request_id), tokens)
            return
        try:
            await self._ledger.keep(UsageEntry(record))
        finally:
            # Settle last. If the server is killed in between, a budget must not include usage without a record.
            self._limits.settle(entry.permit, tokens, cost)

    async def _keep_line(self, entry: _Entry, line: UsageEntry, tokens: int) -> None:
        try:
            await self._ledger.keep(line)
        except BaseException:
            # The answer is lost, so the line runs again.
            self._limits.settle(entry.permit, 0, 0)
            raise
        self._limits.settle_with_record(entry.permit, tokens, line.record.cost)


class _MeteredEvents:
    """Texts of an event stream. The last ones are held back until the usage record is durable.

    No event may show how a request ended before its record is durable. So from the event that ends the last sequence
    on, the remaining events are read to the end first. They follow a moment later.
    """

    def __init__(self, source: EventStream[AnswerEvent], meter: Meter, entry: _Entry, sequences: int) -> None:
        self._source, self._meter, self._entry, self._unfinished = source, meter, entry, sequences
        self._held = deque[str]()
        self._tokens = 0
        self._reason: str | None = None
        self._failed = False
        self._settled = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._held:
            return self._held.popleft()
        try:
            event, tokens = await anext(self._source)
            self._tokens += tokens
            # Most events contain no finish reason, so this cheap test comes first.
            if (_FINISHING in event or event.startswith(_NO_TOKEN)) and self._is_last(event):
                self._held.append(event)
                async for last, tokens in self._source:
                    self._tokens += tokens
                    self._read(last)
                    self._held.append(last)
                await self._settle()
                return self._held.popleft()
        except StopAsyncIteration:
            await self._settle()
            raise
        except Exception as error:
            self._settle_later(_status_of(error))
            raise
        return event

    async def aclose(self) -> None:
        self._held.clear()
        try:
            await self._source.aclose()
        finally:
            self._settle_later(self._meter.cut_off(self._entry))

    def _is_last(self, event: str) -> bool:
        self._read(event)
        return self._unfinished <= 0 or event.startswith(_DONE)

    def _read(self, event: str) -> None:
        if _FINISHING in event:
            reasons = _FINISHED.findall(event)
            self._unfinished -= len(reasons)
            self._reason = reasons[-1]
            self._failed = self._failed or self._reason in _UNFINISHED
        elif event.startswith(_ERROR_PREFIX):
            self._failed = True

    async def _settle(self) -> None:
        if not self._settled:
            self._settled = True
            whole = self._reason is not None and not self._failed
            try:
                status = _OK if whole else _ENGINE_STOPPED
                await self._meter.settle(self._entry, status, self._reason, streamed_tokens=self._tokens)
            except RegistryUnavailable as error:
                # An answer whose usage cannot be recorded must not end as a success.
                self._held = deque([error_event(error)])

    def _settle_later(self, status: int) -> None:
        if not self._settled:
            self._settled = True
            self._meter.settle_later(self._entry, status, streamed_tokens=self._tokens)


def _complete(answer: Answer) -> dict[str, Any]:
    """Return a whole answer.

    Raises:
        EngineUnavailable: the engine stopped before it was complete.
    """
    if not isinstance(answer, dict):
        raise TypeError("A line of a batch has no event stream.")
    if any(choice.get("finish_reason") in _UNFINISHED for choice in answer.get("choices", ())):
        raise EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=1)
    return answer


def _status_of(error: Exception) -> int:
    row = row_of(error)
    return row.status if row else _SERVER_FAULT
