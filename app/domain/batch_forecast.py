"""Forecast of a batch's end from its rate so far. Pure."""

from datetime import datetime, timedelta

from app.domain.batches import Batch, BatchState

#: States of a batch whose lines run.
_RUNNING = (BatchState.IN_PROGRESS, BatchState.CANCELLING)


def lines_per_s(batch: Batch, now: datetime) -> float | None:
    """Return the mean number of lines per second that got a result; None before the first result."""
    begun, done = batch.times.get(BatchState.IN_PROGRESS), batch.completed + batch.failed
    if begun is None or done == 0:
        return None
    end = now if batch.state in _RUNNING else _end_of_lines(batch, now)
    seconds = (end - begun).total_seconds()
    return done / seconds if seconds > 0 else None


def expected_end(batch: Batch, now: datetime) -> datetime | None:
    """Return when the last line will have a result; None if that is unknown, or if no line waits for one.

    Before the first result, it is the end by the quote.
    """
    begun = batch.times.get(BatchState.IN_PROGRESS)
    if batch.state is not BatchState.IN_PROGRESS or begun is None:
        return None
    rate = lines_per_s(batch, now)
    if rate is None:
        expected_s = None if batch.quote is None else batch.quote.expected_s
        return None if expected_s is None else max(now, begun + timedelta(seconds=expected_s))
    return now + timedelta(seconds=(batch.total - batch.completed - batch.failed) / rate)


def is_late(batch: Batch, now: datetime) -> bool:
    """Return whether the batch will not end within its window, as far as is known."""
    end = expected_end(batch, now)
    return end is not None and end > batch.expires_at


def _end_of_lines(batch: Batch, now: datetime) -> datetime:
    ends = (BatchState.FINALIZING, BatchState.CANCELLING, BatchState.EXPIRED, BatchState.CANCELLED)
    return min((batch.times[state] for state in ends if state in batch.times), default=now)
