"""Single worker thread for an event loop."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WorkerThread:
    """Lean replacement of ``ThreadPoolExecutor(1)``. See docs/decisions/0032-single-worker-thread.md.

    The thread starts with its first job. Jobs that are pending when the process exits are lost, unless :meth:`end`
    was called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs = SimpleQueue[_Job | None]()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in the thread and return its result. It runs to its end even if the caller is cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, future))
        return await future

    def end(self) -> None:
        """Finish all pending jobs and join the thread."""
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
            except Exception as raised:  # noqa: BLE001 - passed to the caller
                error = raised
            # A closed loop has no waiter left.
            if not (loop := future.get_loop()).is_closed():
                loop.call_soon_threadsafe(_deliver, future, result, error)


def _deliver(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
