"""One look-up for all who want the same at the same time."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """At most one call per key is under way. It ends by itself, whoever of those that wait for it goes away."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[Result]] = {}

    async def run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of the call that is under way for this key, or of a new one.

        Raises:
            Exception: whatever the call raises.
        """
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.create_task(call())
            task.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(task)

    def _end(self, key: Hashable, task: asyncio.Task[Result]) -> None:
        del self._calls[key]
        # If all have gone away, its error is nobody's.
        if not task.cancelled():
            task.exception()
