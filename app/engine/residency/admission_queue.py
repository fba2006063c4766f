"""Asyncio front end of :class:`app.scheduling.admission.Admission`."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Self

from app.domain.errors import Busy, EngineUnavailable, QueueFull
from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds, Refused
from app.scheduling.snapshot import QueueSnapshot


class AdmissionQueue:
    """Admission queue of one engine session. The scheduler decides the order."""

    def __init__(
        self,
        *,
        slots: int,
        window: int,
        max_age_s: float,
        bounds: Bounds,
        aside: int | None = None,
        step_tokens: float = math.inf,
    ) -> None:
        self._admission = Admission(
            slots=slots, window=window, aside=aside, max_age_s=max_age_s, bounds=bounds, step_tokens=step_tokens
        )
        self._futures: dict[str, asyncio.Future[None]] = {}
        self._versions: dict[int, set[str]] = {}
        #: Requests of several sequences, by the name of the sequence that waits.
        self._wide: dict[str, LaterSequences] = {}
        self._closed = False

    def check_open(self) -> None:
        """Check that the queue accepts requests.

        Raises:
            EngineUnavailable: the queue is closed.
        """
        if self._closed:
            raise _restarting()

    def start_tag(self, name: str) -> float:
        """Return the start tag of an admitted sequence. If more run than have places, the smallest tags go first."""
        return self._admission.start_tag(name)

    async def enter(self, request: AdmissionRequest) -> None:
        """Wait until the request's first sequence may run. End it with :meth:`leave`, also after an error here.

        For a request of several sequences, call :meth:`later` before this.

        Raises:
            QueueFull: the tenant's queue is full.
            Busy: the server's queue is full, or the first token would come too late.
            EngineUnavailable: the queue is closed.
        """
        self.check_open()
        try:
            admitted = self._admission.enter(request, time.monotonic())
        except Refused as refusal:
            raise _refusal(refusal) from None
        self._let_in(admitted)
        if request.request_id in admitted:
            return
        await self._wait(request)

    def later(self, request: AdmissionRequest) -> "LaterSequences":
        """Return an iterator over the request's sequences after the first, each yielded when it is admitted."""
        return LaterSequences(request, self._wide, self.leave)

    def prefilled(self, name: str) -> None:
        """Record that the engine has prefilled a sequence's prompt."""
        self._let_in(self._admission.prefilled(name, time.monotonic()))

    def generated(self, name: str, output_tokens: int) -> None:
        """Record the number of tokens that a sequence has generated."""
        self._let_in(self._admission.generated(name, output_tokens, time.monotonic()))

    def leave(self, name: str, *, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """End a sequence that ran, failed or gave up waiting; with the true counts of tokens, if they are known."""
        now = time.monotonic()
        self._let_in(self._admission.leave(name, now, prompt_tokens=prompt_tokens, output_tokens=output_tokens))

    def staged(self, version_id: int) -> None:
        """Record that the version can be copied into a slot, or has one."""
        self._let_in(self._admission.staged(version_id, time.monotonic()))

    def unstaged(self, version_id: int) -> None:
        """Record that the version has no slot and can no longer be copied into one."""
        self._admission.unstaged(version_id)

    def versions_to_stage(self) -> list[int]:
        """Versions that requests wait for and that are not staged, longest wait first."""
        return self._admission.versions_to_stage()

    def fail(self, version_id: int, error: BaseException) -> None:
        """Fail all requests that wait for a version."""
        for request_id in self._versions.get(version_id, ()):
            if not (future := self._futures[request_id]).done():
                future.set_exception(error)
        for later in self._wide.values():
            if later.request.version_id == version_id:
                later.fail(error)

    def pin(self, version_id: int) -> None:
        """Admit the version's requests without waiting, while a request of it holds its slot."""
        self._let_in(self._admission.pin(version_id, time.monotonic()))

    def unpin(self, version_id: int) -> None:
        """Queue the version's requests like all others again."""
        self._admission.unpin(version_id)

    def snapshot(self) -> QueueSnapshot:
        return self._admission.snapshot(time.monotonic())

    def resize(self, window: int) -> None:
        """Change the number of sequences that may run at once, without preemption. 0: admit none."""
        self._let_in(self._admission.resize(window, time.monotonic()))

    def fail_all(self, error: Callable[[], BaseException]) -> None:
        """Fail all waiting requests, each with an error that this function makes."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error())
        for later in self._wide.values():
            later.fail(error())

    def close(self) -> None:
        """Refuse all waiting and all new requests."""
        self._closed = True
        self.fail_all(_restarting)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for admission."""
        return self._admission.waiting

    @property
    def queued_tokens(self) -> float:
        """Expected weighted tokens of the waiting requests."""
        return self._admission.queued_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Service rate under load, in weighted tokens; None if too little was measured."""
        return self._admission.tokens_per_s

    async def _wait(self, request: AdmissionRequest) -> None:
        future = self._futures[request.request_id] = asyncio.get_running_loop().create_future()
        if request.version_id is not None:
            self._versions.setdefault(request.version_id, set()).add(request.request_id)
        try:
            async with before_deadline(request, "its turn"):
                await future
        finally:
            del self._futures[request.request_id]
            if request.version_id is not None:
                self._versions[request.version_id].discard(request.request_id)
                if not self._versions[request.version_id]:
                    del self._versions[request.version_id]

    def _let_in(self, admitted: Iterable[str]) -> None:
        for name in admitted:
            # A request that is admitted while it is being cancelled has no future here. It calls `leave` itself.
            if (future := self._futures.get(name)) and not future.done():
                future.set_result(None)
            if later := self._wide.get(name):
                later.admit()


class LaterSequences:
    """Asynchronous iterator over a request's sequences after the first. It yields their numbers on admission.

    The consumer ends each yielded sequence with :meth:`AdmissionQueue.leave`. :meth:`close` ends those not yet yielded.

    Args:
        waiting: requests of several sequences, by the name of the sequence that waits.
    """

    def __init__(
        self, request: AdmissionRequest, waiting: "dict[str, LaterSequences]", leave: Callable[[str], None]
    ) -> None:
        self.request = request
        self._waiting, self._leave = waiting, leave
        self._admitted: asyncio.Queue[int | BaseException] = asyncio.Queue()
        self._next = 0
        waiting[request.name(0)] = self

    def admit(self) -> None:
        """Record the admission of the waiting sequence, and let the next one wait."""
        del self._waiting[self.request.name(self._next)]
        if self._next:
            self._admitted.put_nowait(self._next)
        self._next += 1
        if self._next < self.request.sequences:
            self._waiting[self.request.name(self._next)] = self

    def fail(self, error: BaseException) -> None:
        """Hand the consumer an error: the waiting sequence will not be admitted."""
        self._admitted.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """Return the number of the next admitted sequence.

        Raises:
            BaseException: the error passed to :meth:`fail`.
        """
        if self._next >= self.request.sequences and self._admitted.empty():
            raise StopAsyncIteration
        admitted = await self._admitted.get()
        if isinstance(admitted, BaseException):
            raise admitted
        return admitted

    def close(self) -> None:
        """End the waiting sequence and all after it, and those admitted but not yet yielded."""
        name = self.request.name(self._next)
        if self._waiting.pop(name, None):
            self._leave(name)
        while not self._admitted.empty():
            if isinstance(number := self._admitted.get_nowait(), int):
                self._leave(self.request.name(number))


@asynccontextmanager
async def before_deadline(request: AdmissionRequest, awaited: str) -> AsyncIterator[None]:
    """Bound a wait by the request's deadline, if it has one.

    Args:
        awaited: what the request waits for, for the error message.

    Raises:
        Busy: the deadline passed.
    """
    try:
        async with asyncio.timeout(None if request.deadline is None else request.deadline - time.monotonic()):
            yield
    except TimeoutError:
        raise Busy(
            f"The time in x-request-timeout passed while the request waited for {awaited}. Try again later.",
            retry_after=1,
        ) from None


def _refusal(refusal: Refused) -> Busy | QueueFull:
    retry_after = max(1, math.ceil(refusal.retry_after_s))
    if refusal.scope == "tenant":
        return QueueFull(
            f"This tenant has {refusal.found:.0f} waiting requests; the limit is {refusal.allowed:.0f}. "
            "Try again later.",
            retry_after=retry_after,
        )
    if refusal.scope == "deadline":
        text = (
            f"x-request-timeout is {refusal.allowed:.1f} s, but the first token is expected in {refusal.found:.1f} s. "
            "Try again later, or allow more time."
        )
        return Busy(text, param="x-request-timeout", retry_after=retry_after)
    text = "The server has as many waiting requests as it can serve in time. Try again later."
    return Busy(text, retry_after=retry_after)


def _restarting() -> EngineUnavailable:
    return EngineUnavailable("The engine is restarting. Try again later.", retry_after=15)
