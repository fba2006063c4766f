"""Watchdog for an engine that hangs, or that dies and leaves a call without an answer.

Between steps vLLM's loop accepts calls and forwards them to its workers. So an unanswered call means that a step or the
loop is stuck, with or without running requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.domain.errors import EngineUnavailable

T = TypeVar("T")

_LOOKS = 10
_DEATH_POLL_S = 0.1
_RETRY_AFTER_S = 15


async def until_silent(call: Callable[[], Awaitable[object]], silence_s: float) -> None:
    """Send one call after another. Return once a call stays unanswered for ``silence_s`` seconds.

    The time is counted in ten polls, not by the clock. After a pause of the whole machine or container both sides have
    been silent, and the answer has arrived by the next poll.

    Raises:
        Exception: any error of the call.
    """
    pause_s = silence_s / _LOOKS
    while True:
        answer = asyncio.ensure_future(call())
        try:
            for _ in range(_LOOKS):
                await asyncio.wait({answer}, timeout=pause_s)
                if answer.done():
                    break
            else:
                return
        finally:
            answer.cancel()
        await answer
        await asyncio.sleep(pause_s)


async def while_alive(died: Callable[[], bool], work: Awaitable[T]) -> T:
    """Await ``work``, a call to an engine, and fail if the engine dies meanwhile. vLLM would wait forever.

    Raises:
        EngineUnavailable: the engine died.
        Exception: any error of ``work``.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_DEATH_POLL_S)
            if not task.done() and died():
                raise EngineUnavailable(
                    "The engine died while it started. Try again later.", retry_after=_RETRY_AFTER_S
                )
        return task.result()
    finally:
        task.cancel()
