"""Calls of a gateway to engine replicas: retries before the first byte, and one error event after it."""

import asyncio
import time
from collections import deque
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

from app.domain.errors import Busy, EngineUnavailable, TenoraError
from app.engine.error_event import error_event
from app.engine.port import Answer, AnswerEvent, EngineRequest, Outcome, TokenUsage
from app.engine.residency.cost_estimate import admission_request
from app.ray.error_words import engine_lost
from app.ray.hold import Hold
from app.ray.routes import Attempt, Routes
from app.ray.transport import FrameStream, NoReplicas, ReplicaLost, Transport
from app.ray.wire import Frame, Kind, WireError, decode_frame, encode_request
from app.scheduling.admission_request import AdmissionRequest
from app.scheduling.routing import NoReplica
from app.scheduling.token_counters import cost_of

#: Replicas that a request is sent to, one after the other, while nothing of its answer has gone out.
ATTEMPTS = 3
#: Seconds that a cut request's outcome may take. After that, the client is charged for the events that it got.
_OUTCOME_S = 2.0
_DONE = AnswerEvent("data: [DONE]\n\n", 0)


class RayCall:
    """Implementation of :class:`app.engine.port.EngineCall`."""

    def __init__(self, request: EngineRequest, transport: Transport, routes: Routes, hold: Hold | None = None) -> None:
        self.request = request
        self._transport, self._routes, self._hold = transport, routes, hold
        self._began = time.monotonic()
        self._admission = admission_request(request)
        self._outcome = Outcome()

    @property
    def outcome(self) -> Outcome:
        return self._outcome

    async def answer(self) -> Answer:
        failed: set[str] = set()
        error: Exception = engine_lost()
        for _ in range(ATTEMPTS):
            async with self._turn():
                self._outcome = Outcome()
                message = encode_request(self.request, deadline_s=self._left_s())
                attempt = self._attempt(failed, error)
                try:
                    answer = await self._ask(message, attempt)
                except ReplicaLost as lost:
                    error = lost.reason or error
                    self.lose(attempt)
                    failed.update(filter(None, (attempt.target.node_id,)))
                except BaseException:
                    attempt.finish()
                    raise
                else:
                    if isinstance(answer, dict):
                        attempt.finish()
                    return answer
        raise error

    def lose(self, attempt: Attempt) -> None:
        """Record that the attempt's replica was lost, which ends the attempt."""
        attempt.lost()
        self._routes.lose(attempt.target.node_id)

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until a replica is ready, in fair order with other requests."""
        return self._hold.turn(replace(self._admission, deadline=self._deadline)) if self._hold else nullcontext()

    @property
    def _deadline(self) -> float | None:
        return None if self.request.deadline_s is None else self._began + self.request.deadline_s

    def _attempt(self, failed: set[str], lost: Exception) -> Attempt:
        """Choose a replica.

        Args:
            lost: error of the last replica that failed this request.

        Raises:
            EngineUnavailable: no replica is ready.
        """
        version = self.request.adapter.digest if self.request.adapter else None
        try:
            return self._routes.begin(version, tokens=_tokens(self._admission), deadline=self._deadline, avoid=failed)
        except NoReplica as error:
            raise (lost if failed else EngineUnavailable(str(error), retry_after=5)) from None

    async def _ask(self, message: bytes, attempt: Attempt) -> Answer:
        """Send the request to a replica and read the answer up to its first byte.

        Raises:
            ReplicaLost: nothing of the answer has arrived.
            EngineUnavailable: no replica runs, or it runs another release.
            Exception: the error with which the replica refused the request.
        """
        stream = self._transport.answer(message, target=attempt.target)
        self._routes.ungreeted.add(stream)
        try:
            return await self._begin(stream, attempt)
        except NoReplicas:
            raise EngineUnavailable("No engine replica runs. Try again later.", retry_after=5) from None
        except WireError as error:
            stream.cancel()
            raise EngineUnavailable(str(error)) from None
        except asyncio.CancelledError:
            await self.abandon(stream)
            raise
        finally:
            self._routes.ungreeted.discard(stream)

    async def abandon(self, stream: FrameStream) -> None:
        """End the request at its replica, and fetch its outcome, so that the client is charged for its tokens."""
        stream.cancel()
        asking = asyncio.create_task(
            self._transport.call_all("outcome", self.request.request_id.encode(), timeout_s=_OUTCOME_S)
        )
        await asyncio.wait((asking,), timeout=_OUTCOME_S)
        if not asking.done():
            asking.cancel()
        elif not asking.cancelled() and asking.exception() is None:
            for data in filter(None, asking.result()):
                self.note(_decoded(data))

    def note(self, frame: Frame) -> None:
        """Keep what a frame says about the outcome."""
        if frame.kind is Kind.LOAD:
            self._outcome = Outcome(load=frame.value)
        elif frame.kind is Kind.OUTCOME:
            self._outcome = frame.value

    def _left_s(self) -> float | None:
        """Return the seconds left until the deadline.

        Raises:
            Busy: the deadline has passed.
        """
        if self.request.deadline_s is None:
            return None
        left_s = self.request.deadline_s - (time.monotonic() - self._began)
        if left_s <= 0:
            raise Busy("The engine could not start to answer before the deadline. Try again later.", retry_after=1)
        return left_s

    async def _begin(self, stream: FrameStream, attempt: Attempt) -> Answer:
        """Read an answer's frames up to its first byte.

        Raises:
            ReplicaLost, NoReplicas, WireError: nothing of the answer has arrived, or the replica's engine has stopped.
            Exception: the error with which the replica refused the request.
        """
        if (hello := await _next(stream)).kind is not Kind.HELLO:
            raise WireError("An answer begins without a greeting.")
        attempt.arrived(hello.value)
        self._routes.ungreeted.discard(stream)
        while True:
            frame = await _next(stream)
            self.note(frame)
            if frame.kind is Kind.ERROR:
                raise _refusal(frame)
            if frame.kind is Kind.EVENT:
                return RayEvents(self, stream, attempt, frame.value)
            if frame.kind is Kind.WHOLE:
                await self._settle(stream, frame.value)
                return frame.value  # type: ignore[no-any-return]
            if frame.kind is Kind.OUTCOME and (data := await stream.next()) is None:
                return RayEvents(self, stream, attempt, None)
            if frame.kind is Kind.OUTCOME and data is not None:
                raise _refusal(decode_frame(data))

    async def _settle(self, stream: FrameStream, answer: dict[str, Any]) -> None:
        """Read the outcome after a whole answer. If it is lost, the answer's own count stands."""
        try:
            self.note(await _next(stream))
        except (ReplicaLost, WireError):
            usage = answer.get("usage") or {}
            tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
            self._outcome = Outcome(TokenUsage(tokens[0], 0, tokens[1], ttft_s=None), self._outcome.load)


class RayEvents:
    """Event stream from a replica. If the replica is lost, one error event ends it. Its end is the attempt's end."""

    def __init__(self, call: RayCall, stream: FrameStream, attempt: Attempt, first: AnswerEvent | None) -> None:
        self._call, self._stream, self._attempt = call, stream, attempt
        self._ready = deque([first] if first else ())
        self._open = True
        if first is None:
            self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerEvent:
        if self._ready:
            return self._ready.popleft()
        if not self._open:
            raise StopAsyncIteration
        try:
            data = await self._stream.next()
            while data is not None and (frame := decode_frame(data)).kind is not Kind.EVENT:
                self._call.note(frame)
                if frame.kind is Kind.ERROR:
                    return self._cut(frame.value)
                data = await self._stream.next()
        except (ReplicaLost, NoReplicas):
            self._call.lose(self._attempt)
            return self._cut(engine_lost())
        except WireError:
            self._attempt.lost()
            return self._cut(engine_lost())
        except BaseException:
            await self.aclose()
            raise
        if data is not None:
            return frame.value  # type: ignore[no-any-return]
        self._close()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._ready.clear()
        if self._open:
            self._open = False
            try:
                await self._call.abandon(self._stream)
            finally:
                self._close()

    def _close(self) -> None:
        self._open = False
        self._attempt.finish()

    def _cut(self, error: Exception) -> AnswerEvent:
        self._close()
        self._stream.cancel()
        self._ready.append(_DONE)
        return AnswerEvent(error_event(error if isinstance(error, TenoraError) else engine_lost()), 0)


def _tokens(admission: AdmissionRequest) -> float:
    """Estimate the weighted tokens of a request."""
    return cost_of(sum(admission.prompts), admission.output_tokens * admission.sequences)


async def _next(stream: FrameStream) -> Frame:
    """Read the next frame.

    Raises:
        ReplicaLost: also if the stream has ended.
        WireError
    """
    if (data := await stream.next()) is None:
        raise ReplicaLost
    return decode_frame(data)


def _refusal(frame: Frame) -> Exception:
    """Return the error of a request that has no answer. If only this replica's engine fails, another one can answer."""
    if frame.kind is not Kind.ERROR:
        return WireError("An answer goes on after its outcome.")
    return ReplicaLost(frame.value) if isinstance(frame.value, EngineUnavailable) else frame.value


def _decoded(data: bytes) -> Frame:
    try:
        return decode_frame(data)
    except WireError:
        return Frame(Kind.HELLO, None)
