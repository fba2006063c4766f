"""Notices an engine that lives and does nothing, or dies and leaves a call without an answer.

Between any two steps vLLM's loop takes calls and asks its workers, so a call that stays without an answer says that
a step or the loop stands still, whether requests run or not.
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
    """Return once one call has had no answer for ``silence_s``; until then one call follows the other.

    The seconds are counted by looks, ten in all: after a pause of the whole machine or container both sides have
    been silent, and the answer is there by the next look.

    Raises:
        Exception: whatever the call raises.
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
    """What ``work`` returns, which asks an engine: vLLM lets it wait for ever if that dies meanwhile.

    Raises:
        EngineUnavailable: it died.
        Exception: whatever ``work`` raises.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_DEATH_POLL_S)
            if not task.done() and died():
                raise EngineUnavailable("the engine died as it started", retry_after=_RETRY_AFTER_S)
        return task.result()
    finally:
        task.cancel()
