"""Negative cache: exponential backoff for versions whose fetch failed. Pure; the caller passes the time."""

import math
from dataclasses import dataclass

from cachetools import FIFOCache

from adapters.errors import StorageError

_FIRST_S = 2.0
_LONGEST_S = 30.0
#: Limit of versions remembered.
MOST_FAILURES = 10_000


@dataclass(frozen=True, slots=True)
class _Failure:
    """Last error of a version, its backoff in seconds, and the time when that ends."""

    error: StorageError
    pause_s: float
    until: float


class Failures:
    """Backoff by version: 2 s after the first failure, doubling up to 30 s while failures continue.

    The backoff starts again at 2 s if a failure comes more than 30 s after the last backoff ended. When the table is
    full, the oldest entry is dropped, which allows one more fetch. The key holds id and digest, because a restored
    database may reuse an id for other bytes. Times are seconds of one monotonic clock.

    Args:
        most: limit of versions remembered.
    """

    def __init__(self, *, most: int = MOST_FAILURES) -> None:
        self._failures = FIFOCache[str, _Failure](most)

    def note(self, version: str, error: StorageError, now: float) -> None:
        """Record a failed fetch and set the error's ``retry_after`` to the backoff."""
        before = self._failures.get(version)
        repeated = before is not None and now < before.until + _LONGEST_S
        pause_s = min(2 * before.pause_s, _LONGEST_S) if before and repeated else _FIRST_S
        error.retry_after = math.ceil(pause_s)
        # Store a copy without traceback, which would keep every frame's variables alive.
        self._failures[version] = _Failure(_copy(error, error.retry_after), pause_s, now + pause_s)

    def check(self, version: str, now: float) -> None:
        """Refuse a version during its backoff.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: the recorded error, with the whole seconds left as
                ``retry_after``.
        """
        failure = self._failures.get(version)
        if failure is not None and now < failure.until:
            # The difference of large floats may round up.
            raise _copy(failure.error, math.ceil(min(failure.until - now, failure.pause_s)))

    def forget(self, version: str) -> None:
        """Forget a version that was fetched or deleted."""
        self._failures.pop(version, None)


def _copy(error: StorageError, retry_after: int) -> StorageError:
    return type(error)(str(error), retry_after=retry_after)
