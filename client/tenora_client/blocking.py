"""Run blocking work, such as an upload that reads files in threads, from either client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tenora_client.progress import OnProgress, Progress

T = TypeVar("T")

#: Blocking work. It gets the callback to report progress with, which raises Stopped once the caller has gone.
Work = Callable[[OnProgress], T]


class Stopped(Exception):
    """The caller was cancelled, so the work ends."""


def run(work: Work[T], on_progress: OnProgress | None) -> T:
    """Run the work in this thread."""
    return work(on_progress or _ignore)


async def async_run(work: Work[T], on_progress: OnProgress | None) -> T:
    """Run the work in a worker thread, and report its progress in the event loop.

    If the task is cancelled, the work ends at its next report.
    """
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def report(progress: Progress) -> None:
        if stopped.is_set():
            raise Stopped
        if on_progress is not None:
            loop.call_soon_threadsafe(on_progress, progress)

    future = loop.run_in_executor(None, partial(work, report))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stopped.set()
        # Take the result, so that the loop does not report an error that was never fetched.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _ignore(_: Progress) -> None:
    pass
