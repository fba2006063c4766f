"""Figures of the batch runner, for metrics."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from app.database.open_batches import OpenRow
from app.domain.batches import BatchState

#: Seconds over which the rate of lines is averaged.
_RATE_S = 10.0


class Counts:
    """Figures of one server.

    Args:
        now: monotonic time in seconds.

    Attributes:
        lines: lines that this server ran, by outcome.
        open: batches that are not final, by state, on all servers.
        waiting: their lines without a result.
        oldest_s: age of the oldest open batch in seconds.
        per_second: lines with a result per second on this server, averaged over about ten seconds.
    """

    def __init__(self, now: float) -> None:
        self.lines = Counter(answered=0, failed=0, postponed=0)
        self.open = dict.fromkeys((state for state in BatchState if not state.final), 0)
        self.waiting = 0
        self.oldest_s = self.per_second = 0.0
        #: When lines with a result were last counted, and their number.
        self._counted = now, 0

    def note(self, rows: Sequence[OpenRow], at: datetime, now: float) -> None:
        """Update the figures.

        Args:
            rows: all batches that are not final.
            at: the time; ``now`` is the same moment in monotonic seconds.
        """
        ended = self.lines["answered"] + self.lines["failed"]
        counted_at, counted = self._counted
        if (elapsed_s := now - counted_at) > 0:
            rate = (ended - counted) / elapsed_s
            self.per_second += (rate - self.per_second) * min(1.0, elapsed_s / _RATE_S)
            self._counted = now, ended
        states = Counter(row.state for row in rows)
        self.open = {state: states[state] for state in self.open}
        self.waiting = sum(row.waiting for row in rows)
        oldest = min((row.created_at for row in rows), default=at)
        self.oldest_s = max(0.0, (at - oldest).total_seconds())
