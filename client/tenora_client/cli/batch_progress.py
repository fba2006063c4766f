"""Progress of a batch on stderr: one bar at a terminal, a line for each change of its state elsewhere."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tenora_client.cli.output import clean, note, stderr
from tenora_client.progress import Progress as Sent
from tenora_client.types import Batch

#: Seconds over which the speed is measured.
_WINDOW_S = 60.0
_STATES = {"in_progress": "running"}


class BatchProgress:
    """Display of one batch.

    Args:
        label: name of the running batch at the bar, such as its adapter; empty: the id of the batch.
    """

    def __init__(self, bar: Progress, sending: Progress, label: str) -> None:
        self._bar, self._sending, self._label = bar, sending, label
        self._task: Optional[TaskID] = None
        self._upload: Optional[TaskID] = None
        self._stage = ""
        self._looks: deque[tuple[float, int, int]] = deque()

    def sent(self, progress: Sent) -> None:
        """Show the progress of the upload."""
        if self._upload is None:
            self._sending.start()
            self._upload = self._sending.add_task("uploading", total=progress.total_bytes)
        self._sending.update(self._upload, completed=progress.done_bytes)

    def show(self, batch: Batch) -> None:
        """Show a batch as it is now."""
        counts = batch.request_counts
        done, stage = counts.completed + counts.failed, stage_of(batch)
        if not stderr().is_terminal:
            if stage != self._stage:
                note(f"{batch.id}: {stage}, {done}/{counts.total or '?'} lines.")
            self._stage = stage
            return
        _stop(self._sending)
        tokens_s, left_s = self._speed(done, batch.usage.output_tokens, counts.total)
        shown = (self._label or batch.id) if stage == "running" else stage
        if self._task is None:
            self._task = self._bar.add_task(clean(shown), total=None, failed="", speed="", left="")
            self._bar.start()
        self._bar.update(
            self._task,
            description=clean(shown),
            total=counts.total or None,
            completed=done,
            failed=f"{counts.failed} failed",
            speed="" if tokens_s is None else f"{tokens_s:,.0f} tokens/s",
            left="" if left_s is None else f"{duration(left_s)} left",
        )

    def _speed(self, done: int, tokens: int, total: int) -> tuple[Optional[float], Optional[float]]:
        """Return the tokens per second of the last minute, and the seconds to the end at this speed."""
        now = time.monotonic()
        self._looks.append((now, done, tokens))
        while len(self._looks) > 2 and now - self._looks[0][0] > _WINDOW_S:
            self._looks.popleft()
        began, done_then, tokens_then = self._looks[0]
        if done <= done_then or now <= began:
            return None, None
        return (tokens - tokens_then) / (now - began), (total - done) * (now - began) / (done - done_then)


@contextmanager
def progress_of_batch(label: str) -> Iterator[BatchProgress]:
    """Show a batch's progress for the time of the block."""
    words = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("failed", "speed", "left")]
    name = TextColumn("{task.description}", markup=False)
    console = stderr()
    options: dict[str, Any] = {"console": console, "transient": True, "disable": not console.is_terminal}
    bar = Progress(name, BarColumn(), MofNCompleteColumn(), *words, **options)
    sending = Progress(name, BarColumn(), DownloadColumn(), **options)
    try:
        yield BatchProgress(bar, sending, label)
    finally:
        for shown in (sending, bar):
            _stop(shown)


def _stop(shown: Progress) -> None:
    if shown.live.is_started:  # stopping one that was not started prints a line
        shown.stop()


def stage_of(batch: Batch) -> str:
    """Return the state of a batch in words, with the cause if it is blocked."""
    if batch.status == "in_progress" and batch.tenora.blocked is not None:
        return f"blocked: {batch.tenora.blocked.message}"
    return _STATES.get(batch.status, batch.status)


def duration(seconds: float) -> str:
    """Return a duration for people: ``1:05:09`` or ``05:09``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
