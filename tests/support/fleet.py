"""Gateways and replicas in one process: a transport without Ray, whose replicas can be lost at any frame."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from adapters.identity import VersionKey
from app.engine.port import AnswerEvent, EngineRequest, Outcome, TokenUsage
from app.ray.answering import Answering
from app.ray.transport import Deployed, NoReplicas, Phase, ReplicaLost, Target


class ScriptedCall:
    """Call of an engine that answers with given events, or with a whole answer, or with an error.

    Attributes:
        aborted: whether its stream was closed before its end.
    """

    def __init__(self, request: EngineRequest, engine: "ScriptedEngine") -> None:
        self.request, self._engine = request, engine
        self.told = 0
        self.aborted = False
        self.ended = False

    @property
    def outcome(self) -> Outcome:
        usage = TokenUsage(3, 1, self.told, ttft_s=0.25)
        return Outcome(usage if self.ended else None, self._engine.load, finite=self._engine.finite)

    async def answer(self):
        self._engine.calls.append(self)
        if self._engine.error:
            raise self._engine.error
        if self.request.body.get("stream"):
            return ScriptedEvents(self, self._engine)
        await self._engine.may_answer.wait()
        self.ended, self.told = True, 7
        return {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}


class ScriptedEvents:
    def __init__(self, call: ScriptedCall, engine: "ScriptedEngine") -> None:
        self._call, self._engine, self._left = call, engine, list(engine.events)

    def __aiter__(self):
        return self

    async def __anext__(self) -> AnswerEvent:
        if not self._left:
            if self._engine.stream_error:
                self._call.ended = True
                raise self._engine.stream_error
            if not self._engine.endless:
                self._call.ended = True
                raise StopAsyncIteration
            await asyncio.Event().wait()
        event = self._left.pop(0)
        self._call.told += event.tokens
        return event

    async def aclose(self) -> None:
        self._call.aborted = self._call.ended = True


class ScriptedEngine:
    """Engine of a replica in these tests."""

    def __init__(self, *events: AnswerEvent) -> None:
        self.events = events
        self.calls: list[ScriptedCall] = []
        self.error: Exception | None = None
        self.stream_error: Exception | None = None
        self.load = None
        self.finite = True
        self.endless = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def begin(self, request: EngineRequest) -> ScriptedCall:
        return ScriptedCall(request, self)


class Frames:
    """Stream of a replica's frames.

    Args:
        lost_after: number of frames after which the replica is lost; None: never.
    """

    def __init__(self, source: AsyncGenerator[bytes], lost_after: int | None) -> None:
        self._source, self._left = source, lost_after
        self._tasks: set[asyncio.Task[None]] = set()

    async def next(self) -> bytes | None:
        if self._left == 0:
            raise ReplicaLost
        if self._left is not None:
            self._left -= 1
        return await anext(self._source, None)

    def cancel(self) -> None:
        async def close() -> None:
            await self._source.aclose()

        task = asyncio.create_task(close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Fleet:
    """Transport to replicas in this process, whose nodes are ``0``, ``1`` and so on. Without a node, they take turns.

    Attributes:
        targets: target of each attempt.
        losses: for each attempt, the number of frames after which its replica is lost; None: it is not.
    """

    def __init__(self, *replicas: Answering) -> None:
        self._replicas = replicas
        self.losses: list[int | None] = []
        self.targets: list[Target] = []
        self.changed: Callable[[bytes], bytes] = lambda data: data

    @property
    def attempts(self) -> int:
        return len(self.targets)

    def answer(self, request: bytes, *, target: Target) -> Frames:
        if not self._replicas:
            return Frames(_none(), None)
        number = self.attempts if target.node_id is None else int(target.node_id)
        replica = self._replicas[number % len(self._replicas)]
        loss = self.losses[self.attempts] if self.attempts < len(self.losses) else None
        self.targets.append(target)
        return Frames(replica.frames(self.changed(request)), loss)

    async def call(self, method: str, argument: bytes, *, target: Target) -> bytes:
        raise ReplicaLost

    async def wake(self) -> None:
        pass

    async def deployed(self) -> Deployed:
        return Deployed(Phase.STARTING)

    async def call_all(self, method: str, argument: bytes, *, timeout_s: float) -> list[bytes]:
        assert method == "outcome"
        return [await replica.outcome(argument.decode()) for replica in self._replicas]

    async def close(self) -> None:
        pass


async def _none() -> AsyncGenerator[bytes]:
    raise NoReplicas
    yield b""


class OpenGuard:
    """Guard that knows every version, except those that were deleted."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def request(self, key: VersionKey | None):
        return _Section(self.error if key else None)


class _Section:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def __aenter__(self) -> None:
        if self._error:
            raise self._error

    async def __aexit__(self, *_error) -> None:
        pass
