"""Requests that wait at a gateway while no replica is ready.

docs/decisions/0051-hold-requests-while-no-replica-is-ready.md has the reasons.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from app.domain.errors import Busy, EngineUnavailable
from app.engine.residency.admission_queue import AdmissionQueue
from app.scheduling.admission_request import AdmissionRequest, Bounds
from app.scheduling.snapshot import QueueSnapshot

#: Least number of requests that are released together, whatever the replicas' windows.
_LEAST_WINDOW = 4


class Hold:
    """Fair queue of a gateway in front of replicas that are not ready.

    - While a replica is ready and no request waits, a request passes at once.
    - Otherwise it waits in an admission queue, with the order, the bounds and the errors of the engine's queue.
    - Once a replica is ready, requests are released by turns. Those that have no answer yet fill the window, so that
      the replica's queue never gets all of them at once.
    - A request whose deadline is shorter than the expected start is refused at once. It still wakes the replicas.

    It belongs to the gateway's event loop.

    Args:
        bounds: bounds of the queue.
        expected_start_s: expected time from a wake to a ready replica.
        longest_s: maximum time that a request without a deadline waits for a replica.
        wake: called for each request that finds no replica ready.

    Attributes:
        expected_start_s: as above; set it to what was measured.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        expected_start_s: float,
        longest_s: float,
        wake: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # The first window is not used: the queue is shut at once.
        self._queue = AdmissionQueue(slots=1, window=1, aside=0, max_age_s=0.0, bounds=bounds)
        self._queue.resize(0)
        self.expected_start_s, self._longest_s = expected_start_s, longest_s
        self._wake, self._monotonic = wake, monotonic
        self._window = 0
        self._woken_at: float | None = None
        self._refusal: EngineUnavailable | None = None

    @property
    def waiting(self) -> int:
        """Number of requests that wait here."""
        return self._queue.waiting

    @property
    def queued_tokens(self) -> float:
        """Expected weighted tokens of the waiting requests."""
        return self._queue.queued_tokens

    def snapshot(self) -> QueueSnapshot:
        """Return the tenants with a waiting or released request."""
        return self._queue.snapshot()

    def open(self, window: int) -> None:
        """Release requests: a replica is ready.

        Args:
            window: sequences that the replicas run at once.
        """
        self._refusal = self._woken_at = None
        self._resize(max(window, _LEAST_WINDOW))

    def shut(self) -> None:
        """Hold requests: no replica is ready, but one may become ready."""
        self._refusal = None
        self._resize(0)

    def refuse(self, error: EngineUnavailable) -> None:
        """Fail all waiting requests and refuse new ones: no replica can become ready."""
        self._refusal, self._woken_at = error, None
        self._resize(0)
        self._queue.fail_all(self._refused)

    @asynccontextmanager
    async def turn(self, request: AdmissionRequest) -> AsyncGenerator[None]:
        """Wait until the request may go to a replica. The block lasts until its answer begins.

        Raises:
            QueueFull: the tenant's queue is full.
            Busy: the queue is full, or the deadline passes before a replica is ready.
            EngineUnavailable: no replica can become ready, or none was ready in time.
        """
        if self._window and not self._queue.waiting:
            yield
            return
        if not self._window:
            self._check(request)
        held = replace(request, version_id=None, sequences=1, prompts=(sum(request.prompts),))
        try:
            await self._enter(held)
            yield
        finally:
            self._queue.leave(held.request_id)

    async def _enter(self, request: AdmissionRequest) -> None:
        try:
            async with asyncio.timeout(self._longest_s):
                await self._queue.enter(request)
        except TimeoutError:
            raise EngineUnavailable(
                f"No engine replica was ready within {self._longest_s:.0f} s. Try again later.", retry_after=15
            ) from None

    def _check(self, request: AdmissionRequest) -> None:
        """Wake the replicas, and refuse a request that cannot be answered in time."""
        if self._refusal is not None:
            raise self._refused()
        now = self._monotonic()
        if self._woken_at is None:
            self._woken_at = now
        self._wake()
        if request.deadline is None:
            return
        # A start that takes longer than expected may end at any moment.
        start_s = max(1.0, self.expected_start_s - (now - self._woken_at))
        if (left_s := request.deadline - now) < start_s:
            raise Busy(
                f"x-request-timeout is {max(0.0, left_s):.1f} s, but an engine replica is expected to be ready in "
                f"{start_s:.0f} s. Try again later, or allow more time.",
                param="x-request-timeout",
                retry_after=max(1, math.ceil(start_s - left_s)),
            )

    def _refused(self) -> EngineUnavailable:
        """Return a new error for each request: a raised one keeps its traceback."""
        refusal = self._refusal
        return EngineUnavailable(str(refusal), retry_after=refusal.retry_after if refusal else None)

    def _resize(self, window: int) -> None:
        if window != self._window:
            self._window = window
            self._queue.resize(window)
