"""Single-flight: concurrent callers with the same key share one call."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Runs at most one call per key at a time. A call runs to its end even if all its waiters are cancelled."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[Result]] = {}

    async def run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the call in progress for this key, or of a new one.

        Raises:
            Exception: any error of the call.
        """
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.create_task(call())
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    def _end(self, key: Hashable, task: asyncio.Task[Result]) -> None:
        del self._calls[key]
        # Retrieve the error, so that asyncio does not log it when all waiters are gone.
        if not task.cancelled():
            task.exception()
