"""A thread that does one thing after the other for an event loop."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WorkerThread:
    """What ``ThreadPoolExecutor(1)`` does, for less than half of its cost: with records that come one by one, handing
    them over took nearly as long as flushing them to the disk.

    It begins with its first work. What it has not done when the process ends is not done, unless :meth:`end` waits.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs = SimpleQueue[_Job | None]()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns or raises; it runs to its end also if nobody waits any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, future))
        return await future

    def end(self) -> None:
        """Let it end when it has done all that it was given; waits for that."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            result, error = None, None
            try:
                result = function()
            except Exception as raised:  # noqa: BLE001 - whoever waits is told
                error = raised
            # A loop that is closed has nobody who waits.
            if not (loop := future.get_loop()).is_closed():
                loop.call_soon_threadsafe(_tell, future, result, error)


def _tell(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
