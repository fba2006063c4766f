"""The negative cache: what could not be fetched is not tried again at once. Pure; the caller brings the time."""

import math
from collections import OrderedDict
from dataclasses import dataclass

from adapters.errors import StorageError

_FIRST_S = 2.0
_LONGEST_S = 30.0
#: Versions remembered.
MOST_FAILURES = 10_000


@dataclass(frozen=True, slots=True)
class _Failure:
    """The error, its pause in seconds, and when that ends."""

    error: StorageError
    pause_s: float
    until: float


class Failures:
    """Versions whose last fetch failed, each with a pause of 2 s that doubles to 30 s while failure follows failure.

    A failure that comes later than the longest pause after the last one's end is a first one again. Of many the
    oldest are forgotten: then the store is asked once more. Versions are known by id and digest together, as a restored
    database may give an id to other bytes. Times are seconds of one clock that does not go backwards.

    Args:
        most: versions remembered.
    """

    def __init__(self, *, most: int = MOST_FAILURES) -> None:
        self._most = most
        self._failures: OrderedDict[str, _Failure] = OrderedDict()

    def note(self, version: str, error: StorageError, now: float) -> None:
        """A fetch has failed; the error's ``retry_after`` is set to the pause."""
        before = self._failures.pop(version, None)
        repeated = before is not None and now < before.until + _LONGEST_S
        pause_s = min(2 * before.pause_s, _LONGEST_S) if before and repeated else _FIRST_S
        error.retry_after = math.ceil(pause_s)
        # Without its traceback, which would keep every frame's variables alive.
        self._failures[version] = _Failure(_copy(error, error.retry_after), pause_s, now + pause_s)
        if len(self._failures) > self._most:
            self._failures.popitem(last=False)

    def check(self, version: str, now: float) -> None:
        """Refuse a version that is in its pause.

        Raises:
            BlobNotFound, DigestMismatch, StoreUnavailable: as it was, with the whole seconds that are left.
        """
        failure = self._failures.get(version)
        if failure is not None and now < failure.until:
            # Of large times the difference may be rounded up.
            raise _copy(failure.error, math.ceil(min(failure.until - now, failure.pause_s)))

    def forget(self, version: str) -> None:
        """The version was fetched, or is gone."""
        self._failures.pop(version, None)


def _copy(error: StorageError, retry_after: int) -> StorageError:
    return type(error)(str(error), retry_after=retry_after)
