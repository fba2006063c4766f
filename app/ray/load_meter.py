"""Load of a replica, as Ray's autoscaler reads it."""

import time
from collections.abc import Callable


class LoadMeter:
    """Mean number of requests in flight between two readings.

    Ray samples the number of running calls every few seconds. It would miss short requests, and count the gateways'
    questions about the state. This mean is above 0 if any request ran since the last reading, and 0 if none did.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._running = 0
        self._request_seconds = 0.0
        self._since = self._read_at = monotonic()

    def begin(self) -> None:
        """Record the start of a request."""
        self._advance()
        self._running += 1

    def end(self) -> None:
        """Record the end of a request."""
        self._advance()
        self._running -= 1

    def read(self) -> float:
        """Return the mean since the last reading."""
        self._advance()
        seconds = self._since - self._read_at
        mean = self._request_seconds / seconds if seconds > 0 else float(self._running)
        self._request_seconds, self._read_at = 0.0, self._since
        return mean

    def _advance(self) -> None:
        now = self._monotonic()
        self._request_seconds += self._running * (now - self._since)
        self._since = now
